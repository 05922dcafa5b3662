"""The picture for a talk on a run's page: of the run alone, and with its fix where that is known."""

from typing import Any
from unittest.mock import patch

from tests.ui.dashboard import add_run, app, charts
from vitprof.analysis.verdict.advice import apply
from vitprof.experiments import answers
from vitprof.experiments.tournament import planning
from vitprof.store import RunStore, role_of
from vitprof.store.tournaments import set_status
from vitprof.ui.profile.runs import BEFORE
from vitprof.ui.talk import COMPARED

DEVICE = "simulated:5,0"
ALONE = "The simulated GPU waits for data 50% of the time"


def titles(at: Any) -> dict[str, str]:
    """Key of each picture -> its title."""
    return {key: drawn["alt"].split(". ")[0] for key, drawn in charts(at).items()}


def add_proof(store: RunStore, run_id: int, advised_wait_s: float) -> list[int]:
    """Adds the proof of an advice with three rounds; returns the runs of the advised job."""
    config = store.run(run_id).config
    spec = planning.in_turns(config, apply(config, {"strategy": "memory"}), of_run=run_id)
    number = planning.create_tournament(store, spec)
    advised = []
    for round_ in (1, 2, 3):
        for trial, wait_s in zip(planning.plan(spec), (0.005, advised_wait_s), strict=True):
            more = {"group_key": f"tournament:{number}", "role": role_of(trial.key, round_)}
            made = add_run(store, wait_s=wait_s * (1 + 0.01 * round_), device=DEVICE, **more)
            store.update_run(made, config=trial.config)
            if wait_s == advised_wait_s:
                advised.append(made)
    set_status(store, number, "done")
    return advised


def test_a_run_alone(store: RunStore) -> None:
    run_id = add_run(store, device=DEVICE)
    assert titles(app(run=str(run_id), tab="Export")) == {f"talk-{run_id}": ALONE}
    loaded = add_run(store, loader_only=True)
    assert not charts(app(run=str(loaded), tab="Export"))


def test_a_run_with_the_fix_that_was_proven(store: RunStore) -> None:
    run_id = add_run(store, device=DEVICE)
    add_proof(store, run_id, 0.0049)  # no gain
    at = app(run=str(run_id), tab="Export")
    assert titles(at) == {f"talk-{run_id}": ALONE}
    first, *_ = add_proof(store, run_id, 0.0001)
    at = app(run=str(run_id), tab="Export")
    assert titles(at) == {f"talk-{run_id}-{first}": f"{ALONE}; with memory 2.0%: 2.0x faster"}
    with patch.object(answers, "least_others", return_value=1.4):
        disturbed = app(run=str(run_id), tab="Export")
    assert titles(disturbed) == {f"talk-{run_id}-{first}": f"{ALONE}; with memory 2.0%"}
    at.segmented_control(key="talk").set_value("alone").run()
    assert titles(at) == {f"talk-{run_id}": ALONE}


def test_a_run_with_the_one_that_it_was_compared_with(store: RunStore) -> None:
    slow = add_run(store, device=DEVICE)
    fast = add_run(store, wait_s=0.0001, strategy="memory", device=DEVICE)
    pair = {f"talk-{slow}-{fast}"}
    started = {BEFORE.format(fast): str(slow)}
    assert titles(app("", started, run=str(fast), tab="Export")).keys() == pair
    chosen = {COMPARED: [fast, slow]}
    assert titles(app("", chosen, run=str(slow), tab="Export")).keys() == pair
    other = {COMPARED: [fast, 99]}
    assert titles(app("", other, run=str(slow), tab="Export")) == {f"talk-{slow}": ALONE}
