"""Which setting runs next where the time does not hold all rounds of a script's settings; runs are made up."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitprof.analysis.tournament.entries import Entry, RunOutcome
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript, own_config
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament.planning import plan
from vitprof.experiments.tournament.tournament_trials import is_large, rounds
from vitprof.recording.columns import RunSummary

RUN_S = 10.0


class Made:
    """A tournament on a script whose speed is its number of workers; stands for its view, too."""

    def __init__(self, n: int, seconds: float | None) -> None:
        script = OwnScript(
            ("train",), "/", (("workers", tuple(range(1, n + 1))),), {"num_workers": 0}, agreed=True
        )
        known: dict[str, Any] = {
            "seconds": seconds,
            "script": script,
            "baseline": UNCHANGED,
            "until_decided": False,
        }
        self.spec = TournamentSpec(own_config("", steps=50), (OWN_SCRIPT,), (1,), **known)
        self.planned = plan(self.spec)
        self.runs: dict[str, list[RunOutcome]] = {t.key: [] for t in self.planned}
        self.cut: dict[str, str] = {}
        self.others: dict[tuple[int, str], float] = {}
        """Cores that other programs take in a run, by round and setting: one slows it to a tenth."""
        self.run(1, UNCHANGED)

    def run(self, number: int, key: str) -> None:
        speed = float(key.rpartition("=")[2]) if key != UNCHANGED else 0.5
        others = self.others.get((number, key), 0.0)
        blocks = np.full(20, speed / (1 + 9 * others))
        summary = RunSummary(wall_s=RUN_S)
        disturbed = np.full(20, others > 0.25)
        self.runs[key].append(
            RunOutcome(number, 0, "done", blocks, summary, others, disturbed=disturbed)
        )

    def state(self) -> Any:
        entries = []
        for trial in self.planned:
            outcomes, status = (
                tuple(self.runs[trial.key]),
                "cut" if trial.key in self.cut else "done",
            )
            entries.append(Entry(trial.key, "", 1, None, "as-is", outcomes, status, "", 0, 0, 0))  # type: ignore[arg-type]
        return SimpleNamespace(entries=entries, entry={e.key: e for e in entries}.__getitem__)

    def play(self, most: int = 1000) -> list[tuple[int, str]]:
        """Runs what comes next, as a runner does: not again, and not what is out."""
        done = []
        for number, trial in rounds(self, self.spec, self.planned, self.cut.__setitem__):  # type: ignore[arg-type]
            if trial.key in self.cut or any(o.round == number for o in self.runs[trial.key]):
                continue
            if len(done) == most:
                break
            self.run(number, trial.key)
            done.append((number, trial.key.rpartition("/")[2].removeprefix("workers=")))
        return done


def by_round(done: list[tuple[int, str]]) -> list[list[str]]:
    return [
        sorted(key for n, key in done if n == number) for number in sorted({n for n, _ in done})
    ]


def test_time_enough_is_whole_rounds() -> None:
    made = Made(3, seconds=RUN_S * 12)
    assert not is_large(made.state(), made.spec, made.planned)
    assert by_round(made.play()) == [["1", "2", "3"], *[["1", "2", "3", "unchanged"]] * 2]
    assert not is_large(made.state(), dataclasses.replace(made.spec, seconds=None), made.planned)


def test_the_best_third_goes_on_and_the_baseline_beside_it() -> None:
    made = Made(6, seconds=RUN_S * 14)
    assert by_round(made.play()) == [
        ["1", "2", "3", "4", "5", "6"],
        ["5", "6", "unchanged"],
        ["5", "6", "unchanged"],
    ]
    reason = made.cut[f"{OWN_SCRIPT}/workers=4"]
    assert reason == "not among the best 2 after round 1: 4.00 samples/s, and the best has 6.00"


def test_what_other_programs_slowed_down_does_not_fall_out_for_it() -> None:
    made = Made(6, seconds=RUN_S * 14)
    made.others = {(1, f"{OWN_SCRIPT}/workers={n}"): 1.0 for n in (3, 6)}
    done = made.play()
    assert by_round(done)[1:] == [
        ["3", "5", "6", "unchanged"],
        ["5", "6", "unchanged"],
    ]  # both again, the better stays
    assert made.cut[f"{OWN_SCRIPT}/workers=3"].startswith(
        "not among the best 2 after round 1: 3.00 samples/s"
    )
    alike = Made(6, seconds=RUN_S * 14)  # who disturbs all of them disturbs none more than others
    alike.others = dict.fromkeys(((1, key) for key in alike.runs), 1.0)
    assert by_round(alike.play())[1:] == [["5", "6", "unchanged"]] * 2


def test_too_little_time_for_all_takes_some_spread_over_the_list() -> None:
    made = Made(20, seconds=RUN_S * 21)
    first, *rest = by_round(made.play())
    assert len(first) == 12
    assert {"1", "20"} <= set(first)
    assert [len(r) for r in rest] == [5, 3]
    left_out = [
        why
        for why in made.cut.values()
        if why.startswith("not begun: there is time for 12 of 20 settings")
    ]
    assert len(left_out) == 8


@pytest.mark.parametrize("after", [0, 5, 12, 17])
def test_what_was_left_goes_on_as_it_would_have(after: int) -> None:
    whole, begun = Made(20, seconds=RUN_S * 21), Made(20, seconds=RUN_S * 21)
    expected = whole.play()
    assert begun.play(most=after) + begun.play() == expected
    assert begun.cut == whole.cut


def test_what_other_programs_spoil_is_run_again_in_pairs() -> None:
    """Beside a program that never stops both settings run in each further round, by turns."""
    made = Made(1, seconds=None)
    made.others = {(number, key): 1.0 for number in range(1, 9) for key in made.runs}
    again = [(number, key) for number, key in made.play() if number > made.spec.repeats]
    assert made.spec.repeats == 3
    assert again == [
        (4, "unchanged"),
        (4, "1"),
        (5, "1"),
        (5, "unchanged"),
        (6, "unchanged"),
        (6, "1"),
    ]


def test_a_spoiled_round_of_one_setting_is_run_again_beside_the_baseline() -> None:
    made = Made(2, seconds=None)
    made.others = {(2, f"{OWN_SCRIPT}/workers=1"): 1.0}
    assert by_round(made.play())[3:] == [["1", "unchanged"]]
    of_baseline = Made(2, seconds=None)
    of_baseline.others = {(2, UNCHANGED): 1.0}
    assert by_round(of_baseline.play())[3:] == [["2", "unchanged"]], "the fastest beside it"
