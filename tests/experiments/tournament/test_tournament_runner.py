"""Tournaments of real jobs: rounds, failures, early stop, pause, stop, resume, and how they stand."""

import dataclasses
import math
import re
import threading
from typing import Any
from unittest.mock import DEFAULT, Mock

import numpy as np
import psutil
import pytest

from tests.engine_fixtures import CHEAP, small_home, vitprof_threads, wait_until  # noqa: F401
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament.blocks import Disturbance, RunBlocks
from vitprof.analysis.tournament.recommend import recommend
from vitprof.config import RunConfig
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.engine import train
from vitprof.errors import ConfigError, JobError, SampleError, StoreAwayError, StoreError
from vitprof.experiments import trials
from vitprof.experiments.tournament import tournament_runner as jobs
from vitprof.experiments.tournament import tournament_trials, tournament_view
from vitprof.experiments.tournament.planning import create_tournament, plan
from vitprof.experiments.tournament.tournament_runner import TournamentRunner, TournamentRunners
from vitprof.experiments.tournament.tournament_trials import TournamentTrials
from vitprof.experiments.tournament.tournament_view import TournamentView, rounds_of
from vitprof.jobs import users
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore
from vitprof.store.tournaments import add_rounds, set_status, tournament

BASE = RunConfig(
    **(
        CHEAP
        | {
            "device": "simulated:1,5",
            "steps": 30,
            "evaluate": False,
            "isolation": "thread",
            "warmup_steps": 2,
        }
    )
)
SLOW = "simulated:200,0"
LIMIT_S = 120.0
"""Tournaments here take seconds."""
OTHERS_OF = tournament_view.others_of
A, B = "memory/b16/w-/as-is", "memory/b32/w-/as-is"

pytestmark = pytest.mark.usefixtures("small_home")


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TRIALS_EVERY_S", 0.005)
    # a look of 10 ms on a busy machine put the next one off for a second
    monkeypatch.setattr(tournament_trials, "LOOK_SHARE", 1.0)
    monkeypatch.setattr("vitprof.jobs.supervisor.FLUSH_EVERY_S", 0.02)
    by_others(
        monkeypatch, 0.0
    )  # a round that what runs beside the tests slowed down would be run again


def by_others(monkeypatch: pytest.MonkeyPatch, cores: float) -> None:
    """Makes other programs take so many cores in every block of every run."""

    def disturbance_of(store: RunStore, run_id: int, blocks: RunBlocks) -> Disturbance:
        n = len(blocks.per_s)
        return Disturbance(np.full(n, cores), np.full(n, cores >= OTHERS_CORES))

    monkeypatch.setattr(tournament_view, "others_of", lambda store, run_id: cores)
    monkeypatch.setattr(tournament_view, "disturbance_of", disturbance_of)


def made(store: RunStore, device: str = "simulated:1,5", steps: int = 12, **values: Any) -> int:
    base = dataclasses.replace(BASE, device=device, steps=steps)
    known = {"base": base, "strategies": ("memory",), "batch_sizes": (16, 32), "repeats": 2}
    return create_tournament(
        store, TournamentSpec(**(known | {"until_decided": False, "early_stop": False} | values))
    )


def made_uneven(store: RunStore, steps: int, latency_ms: float = 0.3) -> int:
    """Of one batch size: the second setting waits at least `latency_ms` for each file, the first for nothing."""
    base = dataclasses.replace(
        BASE, device="simulated:2,0", steps=steps, slow_latency_ms=latency_ms
    )
    strategies = ("memory", "slow-drive")
    return made(
        store, base=base, strategies=strategies, workers=(0,), batch_sizes=(32,), early_stop=True
    )


def ran(manager: JobManager, number: int) -> TournamentView:
    runner = TournamentRunner(manager, number)
    assert (runner.join(LIMIT_S), runner.error) == (True, "")
    return TournamentView(manager.store, number)


def statuses(store: RunStore, number: int) -> list[tuple[str, str]]:
    return [
        (r.role, r.status) for r in store.runs(group_key=f"tournament:{number}", oldest_first=True)
    ]


def wait_for_training(store: RunStore, number: int) -> None:
    def trains() -> bool:
        runs = store.runs(["running"], group_key=f"tournament:{number}")
        return any(run.role == f"{A}#1" and run.stage == "training" for run in runs)

    wait_until(trains, "the first trial trains")


def test_what_was_not_tried_takes_what_others_took_for_their_samples_or_less() -> None:
    for device, other_s in (
        ("cpu", 4.0),
        ("simulated:10,0", 2.0),
    ):  # 4 s for its samples; the device takes 1 s
        base = RunConfig(device=device, steps=100)
        planned = plan(TournamentSpec(base=base, strategies=("memory",), batch_sizes=(32, 64)))
        took = {planned[0].key: [2.0], planned[1].key: []}
        assert [*tournament_view._expected(planned, took).values()] == [2.0, other_s]


class TestToTheEnd:
    def test_rounds_and_figures(self, manager: JobManager, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tournament_trials, "can_be_fastest", lambda board: ())
        store = manager.store
        number = made(store, strategies=("memory", "preprocessed", "dali"), batch_sizes=(32,))
        view = ran(manager, number)
        other = "preprocessed/b32/w-/as-is"
        assert statuses(store, number) == [
            (f"{k}#{n}", "done") for k, n in ((B, 1), (other, 1), (other, 2), (B, 2))
        ]
        now = view.state()
        assert (now.tournament.status, now.tournament.held, now.tournament.note) == (
            "done",
            False,
            "",
        )
        assert (
            now.progress.done,
            now.progress.total,
            now.progress.fraction,
            now.progress.seconds_left,
        ) == (4, 4, 1, 0)
        by_key = {e.key: e for e in now.entries}
        assert {k: e.status for k, e in by_key.items()} == {
            B: "done",
            other: "done",
            "dali/b32/w2/as-is": "refused",
        }
        assert "cannot load digits" in by_key["dali/b32/w2/as-is"].reason
        for key in (B, other):
            assert [o.round for o in by_key[key].outcomes] == [1, 2]
            for o in by_key[key].outcomes:
                steps = store.steps(o.run_id)
                assert len(o.blocks_per_s) in (
                    (10,) if key == B else (4, 10)
                )  # the other one has a queue
                assert o.summary is not None
                whole = 320 / steps["step_s"][2:].sum()
                assert len(o.blocks_per_s) / np.sum(1 / o.blocks_per_s) == pytest.approx(whole)
        # what it costs: the data set's own files against a storage that was made
        assert (by_key[B].prepare_s, by_key[B].disk_bytes) == (0.0, 0.0)
        assert by_key[B].ram_bytes == 700 * 28 * 28
        assert (by_key[other].prepare_s > 0, by_key[other].ram_bytes) == (True, 0)
        assert by_key[other].disk_bytes >= 700 * 28 * 28
        assert math.isnan(by_key["dali/b32/w2/as-is"].prepare_s)
        board = view.board(now)
        assert view.board(view.state()) is board  # nothing has changed
        assert board.baseline == B
        assert {row.key for row in board.rows if row.rank} == {B, other}

    def test_a_failed_trial_stays_with_its_reason(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        number = made(manager.store)
        monkeypatch.setattr("vitprof.engine.train.open_trainer", _failing_for(16))
        now = ran(manager, number).state()
        assert statuses(manager.store, number) == [
            (f"{A}#1", "failed"),
            (f"{B}#1", "done"),
            (f"{B}#2", "done"),
        ]
        lost = now.entries[0]
        assert (
            lost.status,
            "no room for it" in lost.reason,
            lost.outcomes[0].blocks_per_s.size,
        ) == ("failed", True, 0)
        assert (now.progress.done, now.progress.total, now.tournament.status) == (3, 3, "done")
        assert [e.n_made for e in now.entries] == [1, 2]

    def test_an_image_that_cannot_be_read_ends_it_after_the_first_run(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        number = made(manager.store)
        broken = SampleError("017.jpg cannot be read; skip such samples")
        monkeypatch.setattr("vitprof.engine.train.open_trainer", _failing_with(broken))
        now = ran(manager, number).state()
        assert statuses(manager.store, number) == [(f"{A}#1", "failed")]
        why = f"every setting would fail as memory, batch 16 did: {broken}"
        assert (now.tournament.status, now.tournament.note) == ("stopped", why)

    def test_one_error_of_settings_that_share_nothing_ends_it(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        number = made(manager.store, batch_sizes=(16, 32, 64))
        monkeypatch.setattr(
            "vitprof.engine.train.open_trainer", _failing_with(OSError("no driver"))
        )
        now = ran(manager, number).state()
        assert statuses(manager.store, number) == [(f"{A}#1", "failed"), (f"{B}#1", "failed")]
        assert "every setting would fail as memory, batch 16 did" in now.tournament.note

    def test_a_part_that_all_failed_ones_share_may_be_to_blame(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        strategies = ("memory", "per-sample")
        number = made(manager.store, strategies=strategies, repeats=1)
        monkeypatch.setattr(
            "vitprof.engine.train.open_trainer", _failing_with(OSError("no room"), "memory")
        )
        now = ran(manager, number).state()
        assert now.tournament.status == "done"
        assert sorted(status for _, status in statuses(manager.store, number)) == [
            "done",
            "done",
            "failed",
            "failed",
        ]

    def test_a_store_that_fails_beside_a_run(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run is stopped, and the tournament let go as soon as the store takes it."""
        store = manager.store
        number = made(store, device=SLOW, steps=1000)
        fails_twice = Mock(wraps=set_status, side_effect=[StoreError("locked")] * 2 + [DEFAULT] * 9)

        def locked(*_: object) -> None:
            monkeypatch.setattr(jobs, "set_status", fails_twice)
            raise StoreError("the run store failed: locked")

        monkeypatch.setattr(jobs, "RETRY_S", 0.001)
        monkeypatch.setattr(TournamentTrials, "is_cut", locked)
        runner = TournamentRunner(manager, number)
        assert (runner.join(LIMIT_S), runner.error) == (True, "the run store failed: locked")
        assert [status for _, status in statuses(store, number)] == ["stopped"]
        now = tournament(store, number)
        assert (now.status, now.held, now.note) == ("paused", False, "the run store failed: locked")

    def test_none_can_be_run_here(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        number, of_a_baseline = made(manager.store), made(manager.store, baseline=A)
        monkeypatch.setattr(jobs, "why_not_here", lambda config, machine: "the moon is full")
        assert TournamentRunner(manager, number).join(LIMIT_S)
        now = TournamentView(manager.store, number).state()
        assert [(e.status, e.reason) for e in now.entries] == [("refused", "the moon is full")] * 2
        assert (now.progress.total, now.tournament.note) == (0, "no setting can run here")
        with pytest.raises(ConfigError, match="the moon is full"):
            TournamentRunner(manager, of_a_baseline)
        assert tournament(manager.store, of_a_baseline).status == "queued"

    @pytest.mark.parametrize(("rounds", "n"), [({}, 4), ({"repeats": 1, "until_decided": True}, 2)])
    def test_time_is_up(self, manager: JobManager, rounds: dict[str, Any], n: int) -> None:
        number = made(manager.store, seconds=0.001, **rounds)
        now = ran(manager, number).state()
        assert statuses(manager.store, number) == [(f"{A}#1", "done")]
        why = f"the time limit of 0.001 s was reached after 1 of {n} runs"
        assert (now.tournament.status, now.tournament.note) == ("done", why)
        assert [e.status for e in now.entries] == ["done", "stopped"]
        assert now.entries[1].reason == now.tournament.note

    def test_the_time_ends_it_with_what_is_undecided(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tournament_trials, "can_be_fastest", lambda board: (A, B))
        state = TournamentView.state

        def a_second_each(self: TournamentView) -> tournament_view.TournamentState:
            now = state(self)
            return dataclasses.replace(now, spent_s=float(now.progress.done))

        monkeypatch.setattr(TournamentView, "state", a_second_each)
        number = made(manager.store, seconds=3.0)
        found = ran(manager, number).state().tournament
        assert found.note == (
            "the time limit of 3 s was reached after 3 of 4 runs: undecided between memory, batch 16 and "
            "memory, batch 32; more rounds may decide it"
        )


def _failing_with(error: Exception, strategy: str = "") -> Any:
    from vitprof.engine.trainer import open_trainer

    def opened(config: RunConfig, device: Any) -> Any:
        if strategy in ("", config.strategy):
            raise error
        return open_trainer(config, device)

    return opened


def _failing_for(batch_size: int) -> Any:
    from vitprof.engine.trainer import open_trainer

    def opened(config: RunConfig, device: Any) -> Any:
        if config.batch_size == batch_size:
            raise OSError("no room for it")
        return open_trainer(config, device)

    return opened


def test_what_is_told_of_how_a_setting_reads(store: RunStore) -> None:
    number = made(
        store,
        strategies=("memory", "pt-whole", "hdf5-chunked", "staged"),
        batch_sizes=(32,),
        workers=(0,),
    )
    entries = {e.strategy: e for e in TournamentView(store, number).state().entries}
    orders = {"memory": "full", "pt-whole": "none", "hdf5-chunked": "block", "staged": "full"}
    assert {name: e.shuffle for name, e in entries.items()} == orders
    assert [name for name, e in entries.items() if e.throttled] == ["staged"]


class TestEarlyStop:
    @pytest.fixture(autouse=True)
    def _others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tournament_trials, "RACE_CHECK_S", 0.01)

    def test_nothing_is_cut_while_others_run(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        by_others(monkeypatch, 1.2)
        number = made_uneven(manager.store, 30)
        ran(manager, number)
        # nothing of the two rounds counts, so that each setting has as many runs again
        assert [status for _, status in statuses(manager.store, number)] == ["done"] * 8

    @pytest.mark.measured
    def test_a_trial_that_cannot_win_is_cut_short(self, manager: JobManager) -> None:
        number = made_uneven(manager.store, 240)
        slow, done = "slow-drive/b32/w0/as-is", "done"
        view = ran(manager, number)
        assert statuses(manager.store, number) == [
            (f"{B}#1", done),
            (f"{slow}#1", "stopped"),
            (f"{B}#2", done),
        ]
        now = view.state()
        entry = now.entries[1]
        assert (entry.status, entry.throttled) == ("cut", True)
        steps = re.match(r"cut short after (\d+) .*memory, batch 32 makes at least", entry.reason)
        assert int(steps[1]) >= 100  # half of its budget at least, as far as it was written
        (outcome,) = entry.outcomes
        assert (outcome.status, len(outcome.blocks_per_s)) == ("cut", 20)
        assert view.board(now).row(slow).rank == 2  # type: ignore[union-attr]
        assert (now.progress.done, now.progress.total, now.tournament.status) == (3, 3, "done")

    @pytest.mark.parametrize(
        ("device", "sizes"), [("simulated:4,0", (320, 16)), ("simulated:2,0", (16, 320))]
    )
    def test_not_for_another_batch_size_and_never_the_baseline(
        self, manager: JobManager, device: str, sizes: tuple[int, int]
    ) -> None:
        number = made(manager.store, device, 50, batch_sizes=sizes, early_stop=True)
        ran(manager, number)
        assert [status for _, status in statuses(manager.store, number)] == ["done"] * 4

    def test_one_without_data_holds_nobody_up(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tournament_trials, "LEAST_PATIENCE_S", 0.25)
        monkeypatch.setattr(tournament_trials, "PATIENCE_RUNS", 0.0)
        number = made_uneven(
            manager.store, 30, latency_ms=100.0
        )  # 3.2 s to the first step, however busy the machine
        now = ran(manager, number).state()
        assert [e.status for e in now.entries] == ["done", "cut"]
        assert now.entries[1].reason == "no step after 250 ms; run it alone, without early stop"
        assert len(statuses(manager.store, number)) == 3, "it is not run again"
        assert now.tournament.status == "done"

    @pytest.mark.measured
    def test_not_run_again(self, manager: JobManager, monkeypatch: pytest.MonkeyPatch) -> None:
        number = made_uneven(
            manager.store, 25, latency_ms=4.0
        )  # a busy machine slows the other one down, and not it
        slow = "slow-drive/b32/w0/as-is"
        monkeypatch.setattr(tournament_trials, "RACE_CHECK_S", 60.0)
        by_others(monkeypatch, 0.1)
        entry = ran(manager, number).state().entries[1]
        assert (f"{slow}#1", "done") in statuses(manager.store, number)
        assert (f"{slow}#2", "done") not in statuses(manager.store, number)
        assert entry.status == "cut"
        assert re.match(
            r"not run again after round 1: without other programs it makes at most \S+ samples/s",
            entry.reason,
        )
        assert "memory, batch 32 makes at least" in entry.reason


class TestUntilItIsDecided:
    @pytest.mark.measured
    def test_one_round_decides_nothing_and_two_of_a_large_difference_do(
        self, manager: JobManager
    ) -> None:
        number = made(
            manager.store, "simulated:1,50", 40, batch_sizes=(8, 64), repeats=1, until_decided=True
        )
        view = ran(manager, number)
        assert rounds_of(view.state()) == 2
        assert statuses(manager.store, number)[:2] == [
            (f"memory/b{n}/w-/as-is#1", "done") for n in (8, 64)
        ]
        assert view.state().progress.total == view.state().progress.done == 4
        found = recommend(view.board())
        assert found is not None
        assert (found.key, view.state().tournament.note) == ("memory/b64/w-/as-is", "")

    def test_a_spoiled_round_is_run_again(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            tournament_trials, "spoiled", lambda entry: {1: 1.5} if entry.key == A else {}
        )
        number = made(manager.store, repeats=2)
        assert ran(manager, number).state().tournament.status == "done"
        keys = [key for key, _ in statuses(manager.store, number)]
        # beside the baseline, so that both can be compared in that round, too
        assert sorted(keys) == [f"{key}#{n}" for key in (A, B) for n in (1, 2, 3)]

    def test_how_busy_others_were_is_known_of_each_run(self, manager: JobManager) -> None:
        number = made(manager.store, "simulated:20,0", 40, repeats=1)
        view = ran(manager, number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tournament_view, "others_of", OTHERS_OF)
            outcomes = [o for e in view.state().entries for o in e.outcomes]
        assert all(-0.5 < o.others_cores < psutil.cpu_count() + 0.5 for o in outcomes)

    def test_undecided_after_all_rounds_it_can_go_on(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tournament_trials, "MORE_ROUNDS", 1)
        monkeypatch.setattr(tournament_trials, "can_be_fastest", lambda board: (A, B))
        number = made(manager.store, repeats=1, until_decided=True)
        ran(manager, number)
        found = tournament(manager.store, number)
        assert (found.status, found.note) == (
            "done",
            "undecided between memory, batch 16 and memory, batch 32 after 2 rounds; more rounds may decide it",
        )
        assert len(statuses(manager.store, number)) == 4
        add_rounds(manager.store, number, 1)
        assert tournament(manager.store, number).status == "paused"
        monkeypatch.setattr(tournament_trials, "MORE_ROUNDS", 0)
        assert rounds_of(ran(manager, number).state()) == 3
        assert len(statuses(manager.store, number)) == 6, "what was run before counts on"


class TestInterrupted:
    def test_stopped_and_resumed(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, person = manager.store, "ada"
        monkeypatch.setattr(users, "_source", [lambda: person])
        number = made(store, SLOW, 60, repeats=1)
        runners = TournamentRunners(manager)
        runner = runners.run(number)
        wait_for_training(store, number)
        now = TournamentView(store, number).state()
        assert (now.tournament.held, now.progress.words, now.progress.round) == (True, A, 1)
        with pytest.raises(JobError, match="is running already"):
            TournamentRunner(manager, number)
        person = "bob"
        for stop in (runners.stop, runners.pause):
            with pytest.raises(
                JobError, match=f"tournament {number} was started by ada; others cannot stop it"
            ):
                stop(number)
        person = "ada"
        runners.stop(number)
        assert runner.join(LIMIT_S)
        assert runners.runner(number) is None
        now = TournamentView(store, number).state()
        assert (now.tournament.status, now.progress.done) == ("stopped", 0)
        assert [run.started_by for run in store.runs()] == ["ada"], "the thread's runs too"
        assert [(e.status, e.reason) for e in now.entries] == [
            ("stopped", "stopped by the user")
        ] * 2
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(JobManager, "submit", _on("simulated:1,5"))
            assert runners.run(number).join(LIMIT_S)
        assert statuses(store, number) == [
            (f"{A}#1", "stopped"),
            (f"{A}#1", "done"),
            (f"{B}#1", "done"),
        ]
        now = TournamentView(store, number).state()
        assert [e.status for e in now.entries] == ["done", "done"]
        assert [len(e.outcomes) for e in now.entries] == [1, 1]  # the half-done one counts no more
        assert ([e.n_made for e in now.entries], now.progress.done) == ([2, 1], 2)
        runners.shutdown()

    def test_paused_after_the_running_trial(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = manager.store
        number = made(store)
        go_on = threading.Event()
        whole = train._train_epoch

        def held(*args: Any) -> bool:
            go_on.wait()
            return whole(*args)

        monkeypatch.setattr(train, "_train_epoch", held)
        runners = TournamentRunners(manager)
        runner = runners.run(number)
        wait_for_training(store, number)
        runners.pause(number)
        found = tournament(store, number)
        assert (found.status, found.held) == ("paused", True)
        assert runners.run(number) is runner  # takes the pause back
        assert tournament(store, number).status == "running"
        runners.pause(number)
        go_on.set()
        assert runner.join(LIMIT_S)
        assert statuses(store, number) == [(f"{A}#1", "done")]
        found = tournament(store, number)
        assert (found.status, found.held, found.note) == ("paused", False, "")
        assert runner.resume() is False
        assert runners.run(number).join(LIMIT_S)
        assert tournament(store, number).status == "done"
        assert [s for _, s in statuses(store, number)] == ["done"] * 4
        runners.shutdown()

    def test_a_program_that_ends(self, manager: JobManager) -> None:
        """Whichever of the two is told first, nothing hangs and the tournament can go on."""
        store = manager.store
        number = made(store, SLOW, 60)
        runners = TournamentRunners(manager)
        runners.run(number)
        wait_for_training(store, number)
        manager.shutdown()
        runners.shutdown()
        runners.shutdown()
        found = tournament(store, number)
        assert (found.status, found.held, bool(found.note)) == ("paused", False, True)
        assert statuses(store, number) == [(f"{A}#1", "stopped")]

    def test_a_trial_that_somebody_stops(self, manager: JobManager) -> None:
        store = manager.store
        number = made(store, SLOW, 60, repeats=1, batch_sizes=(16,))
        runner = TournamentRunner(manager, number)
        wait_for_training(store, number)
        manager.stop(store.runs(["running"])[0].id)
        assert runner.join(LIMIT_S)
        assert statuses(store, number) == [(f"{A}#1", "stopped")]
        found = tournament(store, number)
        assert (found.status, found.note) == (
            "stopped",
            "1 of its runs did not finish; resume to run them",
        )

    def test_a_job_that_cannot_be_queued(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        number = made(manager.store)

        monkeypatch.setattr(manager, "submit", Mock(side_effect=JobError("no more jobs today")))
        runner = TournamentRunner(manager, number)
        assert runner.join(LIMIT_S)
        found = tournament(manager.store, number)
        assert runner.error == found.note == "no more jobs today"
        assert found.status == "paused"

    def test_a_store_that_is_unavailable_costs_nothing(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither while a trial runs nor when the next one is to begin."""
        number, locked = (
            made(manager.store),
            StoreAwayError("the run store failed: locked", "locked"),
        )
        watch = Mock(side_effect=locked)
        submits = Mock(
            wraps=manager.submit, side_effect=[locked, locked, DEFAULT, locked, *[DEFAULT] * 9]
        )
        monkeypatch.setattr(manager, "submit", submits)
        monkeypatch.setattr(jobs, "RETRY_S", 0.001)
        monkeypatch.setattr(TournamentTrials, "is_cut", watch)
        runner = TournamentRunner(manager, number)
        assert runner.join(LIMIT_S)
        assert (runner.error, tournament(manager.store, number).status) == ("", "done")
        assert watch.called
        assert {status for _, status in statuses(manager.store, number)} == {"done"}

    def test_nobody_runs_it(self, manager: JobManager) -> None:
        number = made(manager.store)
        runners = TournamentRunners(manager)
        runners.pause(number)
        assert tournament(manager.store, number).status == "queued"
        runners.stop(number)
        assert tournament(manager.store, number).status == "stopped"
        set_status(manager.store, number, "paused")
        assert TournamentView(manager.store, number).state().progress.done == 0


def _on(device: str) -> Any:
    submit = JobManager.submit

    def elsewhere(self: JobManager, config: RunConfig, **more: Any) -> int:
        return submit(self, dataclasses.replace(config, device=device), **more)

    return elsewhere
