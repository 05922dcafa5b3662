"""Headroom by real jobs: which anchors there are, what they give, and those that fail or are stopped."""

import math
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.engine_fixtures import CHEAP, small_home, vitprof_threads, wait_until  # noqa: F401
from tests.stored_series import append_steps
from vitprof.analysis.timing.steady import steady_state
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.errors import ConfigError
from vitprof.experiments import headroom_runs as jobs
from vitprof.experiments.trials import Progress
from vitprof.jobs.manager import JobManager
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.store import StoredRun
from vitprof.telemetry import tmpfs

SIMULATED = "simulated:4,5"
QUICK: dict[str, Any] = CHEAP | {
    "strategy": "memory",
    "device": SIMULATED,
    "steps": 30,
    "evaluate": False,
    "isolation": "thread",  # in a process of its own `digits` would have its full size
}
ON_DISK = pytest.mark.skipif(
    tmpfs.is_in_ram(Path(__file__)), reason="a RAM disk has no page cache to drop"
)


def profiled(manager: JobManager, **config: Any) -> StoredRun:
    run_id = manager.submit(RunConfig(**(QUICK | config)))
    assert manager.wait(run_id, 120)
    run = manager.store.run(run_id)
    assert run.status == "done", run.error
    return run


def configs(**config: Any) -> dict[str, RunConfig]:
    return jobs.anchor_configs(RunConfig(**(QUICK | config)))


@pytest.mark.usefixtures("small_home")
class TestAnchorConfigs:
    @ON_DISK
    def test_the_same_job_four_times(self) -> None:
        asked = RunConfig(**(QUICK | {"strategy": "preprocessed", "name": "mine"}))
        own = resolve(asked)
        anchors = jobs.anchor_configs(own)
        changed = {
            role: {
                n: v for n, v in config.to_dict().items() if v != getattr(own, n) and n != "name"
            }
            for role, config in anchors.items()
        }
        assert changed == {
            "A": {"replay": "device"},
            "B": {"replay": "host"},
            "C": {"page_cache": "warm"},
            "D": {"page_cache": "cold", "steps": 19, "warmup_steps": 4},  # an epoch has 19 batches
        }
        assert [config.name for config in anchors.values()] == [
            f"mine, anchor {role}" for role in "ABCD"
        ]
        assert jobs.anchor_configs(own) == jobs.anchor_configs(asked)

    def test_budgets(self) -> None:
        assert configs(steps=None, epochs=3)["C"].steps == 65
        assert (configs(steps=None, seconds=9.0)["C"].steps, configs(steps=5_000)["A"].steps) == (
            65,
            300,
        )

    @pytest.mark.parametrize(
        ("strategy", "why"), [("memory", "in memory"), ("ram-disk", "RAM disk")]
    )
    def test_no_cold_one(self, strategy: str, why: str) -> None:
        anchors = configs(strategy=strategy)
        assert (list(anchors), anchors["C"].page_cache) == (["A", "B", "C"], "as-is")
        assert why in jobs.why_no_cold(anchors["C"])

    def test_a_slow_drive_belongs_to_the_storage_also_where_home_is_on_a_ram_disk(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        anchors = configs(strategy="slow-drive", slow_drive="mechanical-disk")
        assert (anchors["C"].location, anchors["C"].slow_drive) == ("disk", None)
        assert (anchors["D"].location, anchors["D"].slow_drive) == ("slow-drive", "mechanical-disk")
        monkeypatch.setattr(jobs, "is_in_ram", lambda path: True)
        assert list(configs(strategy="preprocessed")) == ["A", "B", "C"]
        throttled = configs(strategy="slow-drive")
        assert list(throttled) == ["A", "B", "C", "D"]
        assert (throttled["D"].page_cache, throttled["D"].location) == ("as-is", "slow-drive")

    @pytest.mark.parametrize(("inject", "kept"), [("read:20", "C"), ("transfer:20", "BC")])
    def test_a_wait_is_only_where_batches_meet_it(self, inject: str, kept: str) -> None:
        assert (
            "".join(role for role, config in configs(inject=inject).items() if config.inject)
            == kept
        )

    @pytest.mark.parametrize("config", [{"loader_only": True}, {"replay": "host"}])
    def test_refused(self, config: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=r"^[^\n]*headroom[^\n]*$"):
            configs(**config)


@pytest.mark.usefixtures("small_home")
class TestMeasuring:
    @pytest.mark.measured
    def test_an_injected_wait_is_found(self, manager: JobManager) -> None:
        """Ground truth: 20 ms more to read a batch, beside which the device computes 4.16 ms. Within 10%.

        A sleep ends late, so the wait is taken as it was measured in the loader.
        """
        run = profiled(manager, inject="read:20", steps=65)  # of 30, one held up leaves no interval
        found = jobs.measure_headroom(manager, run, repeats=1)
        assert found is not None
        free_ms, copied_ms, _ = (a.s_per_sample * 32e3 for a in found.anchors)
        cost_ms = found.parts[1].s_per_sample * 32e3
        assert free_ms > 4.159
        assert cost_ms >= 19.99 - copied_ms  # a sleep never ends early
        (warm,) = (r for r in manager.store.runs(group_key=jobs.group_of(run)) if r.role == "C")
        steps = manager.store.steps(warm.id)
        waited_ms = float(steps["read_s"][steady_state(steps)].mean()) * 1e3
        assert cost_ms == pytest.approx(waited_ms - 4.16, rel=0.1)
        assert found.speed_up > 1
        assert found.parts[1].distinguishable

    def test_one_round_of_a_data_set_in_memory(self, manager: JobManager) -> None:
        run = profiled(manager, steps=12)
        shown: list[Progress] = []
        found = jobs.measure_headroom(manager, run, repeats=1, progress=shown.append)
        assert found is not None
        assert [p.name for p in found.parts] == ["transfer", "preparation"]
        assert found.simulated
        assert {p.words for p in shown} <= {"anchor A", "anchor B", "anchor C"}
        assert found.notes[-1].startswith(
            "no run over a cold page cache (D): storage memory is in memory"
        )
        again = jobs.find_headroom(manager.store, manager.store.run(run.id))
        # of so few steps an interval may not be known, and NaN is equal to nothing
        assert repr(again) == repr(found)

    @ON_DISK
    def test_four_anchors_in_turns(self, manager: JobManager) -> None:
        run = profiled(manager, strategy="preprocessed", steps=12)
        found = jobs.measure_headroom(manager, run, repeats=2)
        assert found is not None
        mine = manager.store.runs(group_key=f"headroom:{run.id}", oldest_first=True)
        assert ("".join(r.role for r in mine), [a.n_runs for a in found.anchors]) == (
            "ABCDABCD",
            [2, 2, 2, 2],
        )
        assert [p.name for p in found.parts] == ["transfer", "preparation", "storage"]
        assert all(math.isfinite(p.low) and math.isfinite(p.high) for p in found.parts)
        assert found.baseline_role == "C"
        again = jobs.find_headroom(manager.store, mine[0])
        assert again is not None
        assert again.anchors == found.anchors, "found from an anchor too"

    def test_an_anchor_that_fails_is_not_run_again(
        self, manager: JobManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = profiled(manager, steps=12)

        monkeypatch.setattr(
            "vitprof.engine.pipeline.keep_batches", Mock(side_effect=OSError("no room"))
        )
        assert jobs.find_headroom(manager.store, run) is None
        found = jobs.measure_headroom(manager, run, repeats=2)
        mine = manager.store.runs(group_key=jobs.group_of(run), oldest_first=True)
        assert [(r.role, r.status) for r in mine] == [
            ("A", "failed"),
            ("B", "failed"),
            ("C", "done"),
            ("C", "done"),
        ]
        assert found is not None
        assert [a.n_runs for a in found.anchors] == [0, 0, 2]
        assert re.match(r"anchor A: 1 of 1 runs did not finish \(.*no room", found.notes[0])
        assert math.isnan(found.speed_up)

    def test_what_was_stopped_once_or_is_still_to_come(self, manager: JobManager) -> None:
        """The one is not mentioned beside a run that ended, the other is."""
        run, store = profiled(manager, steps=8), manager.store
        steps = store.steps(run.id)
        rows = [list(row) for row in zip(*(steps[name] for name in STEP_COLUMNS), strict=True)]
        for role, config in jobs.anchor_configs(run.config).items():
            for status in ("stopped", "done") if role != "C" else ():
                run_id = store.create_run(config, group_key=jobs.group_of(run), role=role)
                append_steps(store, run_id, rows)
                store.update_run(run_id, status=status)
        store.create_run(run.config, group_key=jobs.group_of(run), role="C")
        found = jobs.find_headroom(store, run)
        assert found is not None
        assert not [note for note in found.notes if "did not finish" in note]
        assert found.pending == ("C",)
