"""Finding a strategy's settings within a time given."""

import dataclasses
import itertools
import math
import os
import re
import shlex
import time
from typing import Any
from unittest.mock import Mock

import pytest

from tests.engine_fixtures import CHEAP, small_home, vitprof_threads, wait_until  # noqa: F401
from vitprof.analysis.arrays import Interval
from vitprof.analysis.tournament.tuning import Candidate, Tried
from vitprof.config import RunConfig
from vitprof.errors import ConfigError, JobError
from vitprof.experiments import trials
from vitprof.experiments import tuning as jobs
from vitprof.experiments.trials import Progress
from vitprof.experiments.tuning import Tuning, candidates, enough_of, run_command
from vitprof.jobs.manager import JobManager

QUICK = {
    "device": "simulated:5,0",
    "batch_size": 16,
    "strategy": "memory",
    "evaluate": False,
    "isolation": "thread",
}
BASE = RunConfig(**(CHEAP | QUICK))

pytestmark = pytest.mark.usefixtures("small_home")


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    torch.set_num_threads(1)  # imported: the search would count the time for it
    monkeypatch.setattr(jobs, "LEAST_S", 0.1)
    monkeypatch.setattr(trials, "POLL_S", 0.005)
    monkeypatch.setitem(jobs.OVERHEAD_S, "thread", 0.1)


class TestCandidates:
    def test_the_own_setting_first_then_by_how_much_they_differ_and_only_what_the_strategy_takes(
        self,
    ) -> None:
        found = candidates(dataclasses.replace(BASE, strategy="workers", batch_size=32))
        own = Candidate(2, 2, 32)
        assert (found[0], len(set(found))) == (own, len(found))

        def changed(c: Candidate) -> int:
            return sum(
                a != b
                for a, b in zip(dataclasses.astuple(c), dataclasses.astuple(own), strict=True)
            )

        assert [changed(c) for c in found] == sorted(changed(c) for c in found)
        assert {c.batch_size for c in found} == {
            8,
            32,
            128,
        }  # four batches of an epoch of 600 at least
        assert {c.workers for c in found} == {0, 1, 2, os.cpu_count(), 2 * (os.cpu_count() or 1)}
        assert {c.prefetch_factor for c in found if c.workers == 0} == {None}
        assert {c.prefetch_factor for c in found if c.workers} == {2, 4, 8}
        assert candidates(BASE) == [
            Candidate(None, None, 16),
            Candidate(None, None, 64),
            Candidate(None, None, 4),
        ]
        base = dataclasses.replace(BASE, strategy="workers", workers=1)
        found = candidates(base, batch_sizes=[16, 32], workers=[1])
        assert {(c.workers, c.batch_size) for c in found} == {(1, 16), (1, 32)}


class TestTune:
    @pytest.mark.measured
    def test_the_largest_batch_wins_on_a_device_that_takes_no_longer_for_it(
        self, manager: JobManager
    ) -> None:
        shown: list[Progress] = []

        def slow() -> float:  # a machine that is busy with other things may take its time
            return time.monotonic() / 20

        found = jobs.tune(
            manager, BASE, 1.5, batch_sizes=[16, 64], progress=shown.append, clock=slow
        )
        expected = (Candidate(None, None, 16), Candidate(None, None, 64), True)
        assert (found.default, found.winner, found.verified) == expected
        assert 1 < found.gain.low <= found.gain.value <= found.gain.high
        checks = [(size, 0) for size in (16, 64, 64, 16, 16, 64)]
        known = [
            t for t in found.tried if t.samples_per_s > 0
        ]  # a first run without a figure is made again
        assert [(t.candidate.batch_size, t.rung) for t in known] == [(16, 1), (64, 1), *checks]
        assert found.config.batch_size == 64
        assert re.search("batch 64 reaches .* times that of batch 16", found.sentence)
        assert shown[0].words == "0 of 2 settings tried; now the default: batch 16"
        assert 0 <= shown[-1].fraction <= 1
        (group,) = {r.group_key for r in manager.store.runs()}
        assert group.startswith("autotune:")

    def test_no_run_begins_when_the_time_is_up_and_stopped_it_gives_the_best_so_far(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "LEAST_S", 1.0)  # a busy machine makes enough steps in it
        found = jobs.tune(manager, BASE, 1.5, clock=itertools.count().__next__)
        assert (len(found.tried), found.winner, found.verified) == (1, found.default, False)

        def has_a_figure() -> bool:
            runs = manager.store.runs(["done"])
            return any(run.summary and run.summary.samples_per_s > 0 for run in runs)

        for run in manager.store.runs():
            manager.store.delete(run.id)
        found = jobs.tune(manager, BASE, 60.0, stop=has_a_figure, clock=lambda: 0.0)
        assert (found.stopped, found.verified, math.isnan(found.samples_per_s)) == (
            True,
            False,
            False,
        )

    def test_no_run_ends_well(self, manager: JobManager, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "vitprof.engine.train.open_pipeline", Mock(side_effect=OSError("no room for it"))
        )
        with pytest.raises(JobError, match="no room for it"):
            jobs.tune(manager, BASE, 1.0)

    @pytest.mark.parametrize(
        ("changes", "seconds", "field"),
        [({}, 0.0, "time"), ({}, math.nan, "time"), ({"strategy": "dali"}, 1, "strategy")],
    )
    def test_what_it_refuses(
        self, manager: JobManager, changes: dict[str, Any], seconds: float, field: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            jobs.tune(manager, dataclasses.replace(BASE, **changes), seconds)
        assert (caught.value.field, manager.store.runs()) == (field, [])


def test_the_command_runs_the_winner() -> None:
    from vitprof.config.resolve import resolve

    asked = dataclasses.replace(
        BASE, strategy="workers", workers=1, prefetch_factor=4, loader_times=False, name="a b"
    )
    words = shlex.split(run_command(resolve(asked)))
    assert words[:6] == ["python", "-m", "vitprof", "run", "--strategy", "workers"]
    options = dict(zip(words[6::2], words[7::2], strict=False))
    assert (options["--workers"], options["--prefetch-factor"]) == ("1", "4")
    assert options["--device"] == "simulated:5,0"
    assert "--no-loader-times" in words
    assert not {"--seconds", "--lr", "--name", "--pin-memory", "--loader", "--augment"} & set(words)


DEFAULT, OTHER = Candidate(2, 2, 64), Candidate(1, 4, 256)
CHECKED = {"winner": OTHER, "verified": True}
GAIN, TIE, SURE = Interval(1.0, 1.0, 1.0), Interval(1.02, 0.98, 1.07), Interval(2.0, 1.5, 2.5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "hdf5: keep batch 64, 2 workers, prefetch 2; nothing was faster (2 of 2 settings tried in 20.0 s)",
        ),
        (
            CHECKED | {"gain": TIE},
            "no gain found, keep batch 64, 2 workers, prefetch 2; batch 256, 1 worker, ",
        ),
        (
            CHECKED | {"gain": TIE},
            " has 1.02 times that of batch 64, 2 workers, prefetch 2 (0.98 to 1.07) (2 of",
        ),
        (
            {"winner": OTHER},
            "no gain found, keep batch 64, 2 workers, prefetch 2; the lead of batch 256, 1 worker, ",
        ),
        ({"samples_per_s": math.nan}, "none of 2 of 2"),
        (
            {"n_candidates": 40},
            "hdf5: 2 of 40 settings tried in 20.0 s, too few to name the best; give it about 8 min",
        ),
        (CHECKED | {"n_candidates": 40}, "too few to name the best; give it about 8 min"),
        (CHECKED | {"n_candidates": 40, "gain": SURE}, "reaches 1,000 samples/s, 2.00 times"),
        ({"n_candidates": 40, "stopped": True}, "too few to name the best; it was stopped"),
    ],
)
def test_in_words(changes: dict[str, Any], sentence: str) -> None:
    known: dict[str, Any] = {
        "strategy": "hdf5",
        "default": DEFAULT,
        "winner": DEFAULT,
        "config": BASE,
    }
    known |= {
        "samples_per_s": 1000.0,
        "gain": GAIN,
        "verified": False,
        "n_candidates": 2,
        "seconds": 20.0,
    }
    tried = tuple(Tried(c, 1, i, 1000.0, "") for i, c in enumerate((DEFAULT, OTHER), 1))
    assert sentence in Tuning(**(known | {"tried": tried, "stopped": False} | changes)).sentence


def test_the_time_that_is_named_lets_enough_be_tried() -> None:
    assert jobs.settings_within(20.0, 40, 5.0) == 3
    needed = jobs.seconds_for(10, 40, 5.0)
    assert jobs.settings_within(needed, 40, 5.0) >= 10 > jobs.settings_within(needed - 10, 40, 5.0)
    assert jobs.settings_within(jobs.DEFAULT_S, 40, 5.0) >= enough_of(40)
