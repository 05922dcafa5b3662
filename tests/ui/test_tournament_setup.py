"""The form of a new tournament: what one click starts, what it takes, and what it refuses."""

import math
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, address, app, click, kept_in_url, read, said
from vitprof.config import RunConfig
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament.planning import plan
from vitprof.experiments.tournament.tournament_runner import TournamentRunners
from vitprof.store import RunStore
from vitprof.store.tournaments import tournament
from vitprof.ui.tournament.setup import estimate, estimate_sentence

pytestmark = pytest.mark.usefixtures("store")
DEVICE = "simulated:10,0"
RELOADED = {
    "trial_strategies": ["memory", "workers"],
    "trial_batch_sizes": ["64", "256"],
    "trial_workers": ["0", "2"],
}
RELOADED |= {"trial_lasts": "steps", "trial_steps": "30", "trial_limit": "2"}
"""What a form says in the URL."""


def page(**query: str | list[str]) -> AppTest:
    return app("tournament", device=DEVICE, **query)


def test_start_runs_what_was_chosen(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(TournamentRunners, "run", lambda self, number: begun.append(number))
    at = page(threads="1", seed="7", storage="memory")
    assert (
        "From the settings of Profile: Seed 7, Torch CPU threads 1. Not taken from there: Storage"
        in said(at)
    )
    at.multiselect(key="trial_strategies").set_value(["memory", "workers"]).run()
    at.multiselect(key="trial_workers").set_value([0, 2]).run()
    at.multiselect(key="trial_batch_sizes").set_value([64, 256]).run()
    at.selectbox(key="trial_lasts").set_value("steps").run()
    at.number_input(key="trial_steps").set_value(30).run()
    at.number_input(key="trial_limit").set_value(2.0).run()
    at.selectbox(key="trial_baseline").set_value("workers/b64/w0/as-is").run()
    assert "Cut to the first" not in said(at)
    at.text_input(key="trial_name").set_value("mine " * 50).run()
    assert "Cut to the first 200 characters" in said(at)
    chosen = {name: kept_in_url(at)[name] for name in RELOADED}
    again = page(**RELOADED)
    assert not again.warning
    assert {name: kept_in_url(again)[name] for name in RELOADED} == chosen
    click(at, "tournament-start")
    (started,) = begun
    assert address(at)["tournament"] == str(started)
    found = tournament(store, started)
    assert found.name == ("mine " * 40).strip()
    assert (found.spec.base.threads, found.spec.base.seed, found.spec.base.steps) == (1, 7, 30)
    assert (found.spec.base.device, found.spec.base.storage, found.spec.base.evaluate) == (
        DEVICE,
        None,
        False,
    )
    assert found.spec.strategies == ("memory", "workers")
    assert (found.spec.workers, found.spec.batch_sizes, found.spec.seconds) == (
        (0, 2),
        (64, 256),
        120,
    )
    assert found.spec.baseline == "workers/b64/w0/as-is"
    # what was chosen is still there when the form comes back
    click(at, "tournament-back")
    assert (
        at.multiselect(key="trial_workers").value,
        at.number_input(key="trial_steps").value,
    ) == ([0, 2], 30)


def test_what_is_taken_from_profile_is_said_as_the_sidebar_has_it() -> None:
    text = said(page(skip_unreadable="true"))
    assert "From the settings of Profile: Skip unreadable samples on." in text


def test_an_address_that_names_what_cannot_be_is_told() -> None:
    profile = {
        "dataset": "nope",
        "model": "none",
        "device": "gpu",
        "n_images": "-3",
        "batch_size": "x",
    }
    trial = {"lasts": "years", "steps": "x", "early_stop": "perhaps"}
    more = {
        f"trial_{name}": value
        for name, value in (trial | {"evaluate": "false", "seconds": "5"}).items()
    }
    at = app("tournament", trial_strategies=["memory", "nope"], **(profile | more))
    assert at.multiselect(key="trial_strategies").value == ["memory"]
    told = read(at.warning[0].value)
    for words in ("Strategies: nope is not possible", "Lasts: years", *profile.values()):
        assert words in told
    assert "false" not in told
    assert "Seconds" not in told
    at.run()
    assert not at.warning
    for name, value in (
        ("repeats", "0"),
        ("repeats", "1000000000000"),
        ("seconds", "-4"),
        ("limit", "-1"),
    ):
        at = page(**{f"trial_{name}": value})
        assert len(at.error) == 1
        assert ": give a" in at.error[0].value.replace("\\", "")
        assert at.button(key="tournament-start").disabled


def test_a_newcomer_can_start_at_once_and_what_is_no_choice_is_refused_in_a_line() -> None:
    at = page()
    assert "A tournament runs strategies" in said(at)
    assert (
        "4 settings x 3 rounds = 12 runs, about 2 min; up to 10 rounds (about 6 min) until it is decided"
        in said(at)
    )
    assert not at.button(key="tournament-start").disabled
    assert not at.error
    at.session_state["trial_batch_sizes"] = [128, "100", "100"]
    at.run()
    assert "8 settings x 3 rounds = 24 runs" in said(at)
    for field, chosen, message in (
        (
            "batch_sizes",
            [128, "many"],
            "Batch sizes many: many is no number: give a whole number from 1 to 1,000,000",
        ),
        ("batch_sizes", ["8..2"], "Batch sizes 8..2: 8..2 ends before it begins: give the smaller"),
        ("page_caches", [], "Page caches: give at least one"),
        ("strategies", [], "Strategies: give at least one"),
    ):
        before, at.session_state[f"trial_{field}"] = at.session_state[f"trial_{field}"], chosen
        at.run()
        (error,) = at.error
        assert read(error.value).startswith(message)
        assert at.button(key="tournament-start").disabled
        at.session_state[f"trial_{field}"] = [128] if field == "batch_sizes" else before


def test_five_fields_come_first_and_the_others_are_in_one_drawer() -> None:
    at = page(dataset="photos")
    (drawer,) = (box for box in at.expander if box.label == "Advanced")

    def keys(block: Any) -> set[str]:
        widgets = [*block.selectbox, *block.multiselect, *block.number_input, *block.toggle]
        return {widget.key for widget in widgets}

    of_device = {f"tournament-device-{name}" for name in ("ms", "us", "launch")}
    first = {"tournament-dataset", "tournament-device", "trial_batch_sizes", "trial_strategies"}
    first |= {"trial_lasts", "trial_seconds", "trial_repeats"}
    assert keys(at) - keys(drawer) - of_device == first
    assert {"tournament-model", "tournament-n_images", "trial_workers"} <= keys(drawer)


def test_ranges_can_be_typed_and_prefetch_factors_are_varied_too(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(TournamentRunners, "run", lambda self, number: begun.append(number))
    at = page(trial_strategies=["memory"])
    assert at.multiselect(key="trial_prefetch_factor").disabled
    at.multiselect(key="trial_strategies").set_value(["memory", "workers"]).run()
    at.session_state["trial_workers"] = [0, "0..4:2"]
    at.session_state["trial_prefetch_factor"] = ["2..8:x2"]
    at.session_state["trial_batch_sizes"] = [64]
    at.run()
    assert not at.error
    assert not at.multiselect(key="trial_prefetch_factor").disabled
    # in memory; without workers; with 2 and with 4 workers, each with three factors
    assert "8 settings x 3 rounds = 24 runs" in said(at)
    click(at, "tournament-start")
    spec = tournament(store, begun[0]).spec
    assert (spec.workers, spec.vary) == ((0, 2, 4), (("prefetch_factor", (2, 4, 8)),))


def test_what_cannot_run_here_is_left_out_with_its_reason() -> None:
    at = page()
    (missing,) = (c for c in at.caption if c.value.startswith("Not possible here:"))
    assert ("dali" in missing.value, "**dali**" in missing.help) == (True, True)
    at.multiselect(key="trial_strategies").set_value(["memory", "dali"]).run()
    assert "dali, batch 128" in said(at)
    assert any(e.label == "1 of 2 settings cannot run here: why" for e in at.expander)
    assert "1 setting x 3 rounds = 3 runs" in said(at)
    assert not at.button(key="tournament-start").disabled
    at.multiselect(key="trial_strategies").set_value(["dali"]).run()
    assert "None of these settings can run here" in at.error[0].value
    assert at.button(key="tournament-start").disabled
    click(at, "tournament-all")
    assert "dali" not in at.multiselect(key="trial_strategies").value
    assert len(at.multiselect(key="trial_strategies").value) > 10


def test_another_data_set_brings_its_own_strategies() -> None:
    at = page()
    at.selectbox(key="tournament-device").set_value("cpu").run()
    assert address(at)["device"] == "cpu"
    at.selectbox(key="tournament-dataset").set_value("photos").run()
    assert "threads" in at.multiselect(key="trial_strategies").value
    at.multiselect(key="trial_strategies").set_value(["memory"]).run()
    at.selectbox(key="tournament-dataset").set_value("digits").run()
    assert at.multiselect(key="trial_strategies").value == ["memory"]


def test_the_time_is_known_from_earlier_runs(store: RunStore) -> None:
    spec = TournamentSpec(RunConfig(steps=100, device=DEVICE), ("per-sample", "memory"), (100,))
    planned = plan(spec)
    found = estimate(planned, 3, store)
    assert (found.unknown, found.seconds) == (2, pytest.approx(2 * 3 * (4 + 100 * 0.010)))
    assert "at least" in estimate_sentence(found, 2, spec)[0]
    add_run(store, strategy="per-sample", device=DEVICE, wait_s=0.0148)
    speed = store.runs()[0].summary
    found = estimate(planned, 3, store)
    assert found.unknown == 1
    assert found.seconds == pytest.approx(3 * (4 + 100 * 100 / speed.samples_per_s) + 3 * (4 + 1))
    assert math.isfinite(found.seconds)


def test_disk_and_memory_are_counted_once_for_a_storage(store: RunStore) -> None:
    base = RunConfig(seconds=1, device=DEVICE)
    planned = plan(TournamentSpec(base, ("memory", "hdf5", "hdf5-chunked"), (64, 128)))
    found = estimate(planned, 1, store)
    pixels = 70_000 * 28 * 28
    assert found.prepares == ("hdf5", "hdf5-chunked")
    assert found.disk_bytes == 3 * pixels, "two storages, and the data set itself"
    assert (found.makes, found.ram_bytes, estimate((), 1, store).seconds) == ("digits", pixels, 0)
