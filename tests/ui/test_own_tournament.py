"""The Tournament page for a user's own script: all of the answer, and lines to type in place of buttons."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, app, said
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript, own_config, settings_of
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament.planning import create_tournament, plan
from vitprof.store import RunStore, role_of
from vitprof.store.tournaments import TournamentStatus, set_status
from vitprof.ui.tournament.results import OF_OWN_SCRIPTS, SECTIONS

LOADER = {"num_workers": 0, "batch_size": 8, "n_samples": 800, "made_given": "batch_size"}
WAITS = {UNCHANGED: 0.02, f"{OWN_SCRIPT}/workers=2": 0.01, f"{OWN_SCRIPT}/workers=4": 0.0001}


def add_own_tournament(
    store: RunStore, *, status: TournamentStatus = "done", agreed: bool = True, rounds: int = 2, **state: object
) -> int:
    """A script whose steps wait for less, the more workers there are."""
    varied = (("workers", (2, 4)), ("decode_cache", ("off",)))
    script = OwnScript(("python", "train.py"), "/work", varied, LOADER, ("model.pt",), agreed)
    known = {"script": script, "repeats": 2, "baseline": UNCHANGED}
    spec = TournamentSpec(own_config("", steps=40), (OWN_SCRIPT,), (1,), **known)  # type: ignore[arg-type]
    number = create_tournament(store, spec)
    assert [s.key for s in settings_of(script)] == list(WAITS)
    for k in range(1, rounds + 1):
        for trial in plan(spec) if agreed else plan(spec)[:1]:
            group = {"group_key": f"tournament:{number}", "role": role_of(trial.key, k)}
            run_id = add_run(store, wait_s=WAITS[trial.key] * (1 + 0.01 * k), **group)
            store.update_run(run_id, config=trial.config)
    set_status(store, number, status, **state)
    return number


def shown(tournament_id: int, **query: str) -> AppTest:
    return app("tournament", tournament=str(tournament_id), **query)


def test_the_answer_with_the_line_to_paste_and_the_line_to_type(store: RunStore) -> None:
    at = shown(add_own_tournament(store))
    text = said(at)
    assert "Use 4 workers: " in text
    assert "times that of the script as it is" in text
    assert "python train.py in /work; workers 2, 4" in text
    codes = [code.value for code in at.get("code")]
    assert codes == ["python -m vitprof tournament --resume 1 --more-rounds 3", "DataLoader(..., num_workers=4)"]
    frame = at.dataframe[0].value
    assert list(frame["Setting"]) == ["4 workers", "2 workers", "the script as it is"]
    assert "Use" not in frame
    assert [[*more] for more in frame["More"]] == [["Compare with baseline", "Show its runs"]] * 2 + [["Show its runs"]]
    labels = {button.label for button in at.button}
    assert not labels & {"Run 3 more rounds", "Resume", "Use this setting", "Start tournament"}, "it starts nothing"


def test_what_it_wrote_stands_there_until_somebody_agrees(store: RunStore) -> None:
    note = "the first trial wrote 1 file under /work: model.pt"
    at = shown(add_own_tournament(store, status="paused", agreed=False, rounds=1, note=note))
    assert note in said(at)
    codes = [code.value for code in at.get("code")]
    assert codes == ["model.pt", "python -m vitprof tournament --resume 1 --yes"]
    assert "Resume" not in {button.label for button in at.button}


def test_one_that_was_stopped_shows_how_to_go_on(store: RunStore) -> None:
    at = shown(add_own_tournament(store, status="stopped", rounds=1))
    assert "python -m vitprof tournament --resume 1" in [code.value for code in at.get("code")]


def test_sections_and_settings(store: RunStore) -> None:
    number = add_own_tournament(store)
    for section in OF_OWN_SCRIPTS:
        at = shown(number, section=SECTIONS[section][0])
        assert not at.error
    at.selectbox(key="setting").set_value(f"{OWN_SCRIPT}/workers=2").run()
    assert "DataLoader(..., num_workers=2)" in [code.value for code in at.get("code")]
    at = app("tournament")
    assert "recommended: 4 workers" in said(at)
