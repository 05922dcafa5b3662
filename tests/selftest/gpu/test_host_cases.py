"""The cases that start jobs and scripts, on a host whose jobs and memory are made up; scripts are real processes."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.errors import ConfigError, JobStopped
from vitprof.export.code import script
from vitprof.selftest.gpu import host as host_module
from vitprof.selftest.gpu import leftovers, other_gpu, scripts, strategies
from vitprof.selftest.gpu.host import NAMES, Host, OutOfTime, settings_for


class Worker:
    """A process that does not end."""

    pid = 1

    def is_running(self) -> bool:
        return True

    def ppid(self) -> int:
        return self.pid


class MadeUp(Host):
    """A host whose jobs end as `ends` says, in turn, with (status, error)."""

    ends: list[tuple[str, str]]
    steps: dict[str, Any]
    asked: list[RunConfig]

    @property
    def manager(self) -> Any:
        store = SimpleNamespace(steps=lambda run_id: self.steps)
        return SimpleNamespace(store=store, wait=lambda run_id, timeout: True, stop=lambda run_id: None)

    def start(self, config: RunConfig) -> int:
        self.asked.append(resolve(config))
        return len(self.asked)

    def wait(self, run_id: int) -> Any:
        self.check()
        status, error = self.ends.pop(0) if self.ends else ("done", "")
        return SimpleNamespace(id=run_id, status=status, error=error, summary=None)

    def training(self, run_id: int) -> bool:
        return True


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    monkeypatch.setattr(host_module, "POLL_S", 0.001)
    made = MadeUp("cuda:0", tmp_path, lambda config: "", used_bytes=lambda device: 1e9)
    made.ends, made.asked = [], []
    columns = ("step", "data_wait_s", "h2d_s", "compute_s", "step_s")
    made.steps = {name: np.full(strategies.STEPS, 1e-3) for name in columns}
    return made


@pytest.mark.parametrize("name", NAMES)
def test_each_strategy_has_a_short_job_that_can_run_and_a_script(name: str) -> None:
    config = resolve(RunConfig(device="cuda:0", steps=20, **settings_for(name)))
    assert config.workers in (None, 0, 2)
    assert config.slow_latency_ms in (None, 1.0)
    assert "--demo" in script(RunConfig(**settings_for(name)))


class TestStrategies:
    @pytest.fixture(autouse=True)
    def a_few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(strategies, "NAMES", ("memory", "workers", "dali"))
        monkeypatch.setattr(strategies, "why_unavailable", lambda plan, info: "no DALI" * (plan.name == "dali"))

    def test_all_that_can_run_are_run(self, host: MadeUp) -> None:
        outcome = strategies.every_strategy(host)
        assert (outcome.status, outcome.measured) == (
            "passed",
            "2 of 3 trained 20 steps; cannot run here: dali (no DALI)",
        )
        assert [config.strategy for config in host.asked] == ["memory", "workers"]
        assert (host.asked[1].workers, host.asked[1].pin_memory) == (2, True)

    def test_what_fails_is_named(self, host: MadeUp) -> None:
        host.ends = [("failed", "CUDA error"), ("done", "")]
        host.steps["compute_s"][3] = math.nan
        outcome = strategies.every_strategy(host)
        assert outcome.reason == (
            "memory: failed: CUDA error; workers: compute_s has values that are negative or not known"
        )

    def test_what_comes_too_late_is_named(self, host: MadeUp) -> None:
        host.ends_s = 0.0
        assert strategies.every_strategy(host).reason == "time ran out before memory, workers, dali"

    def test_a_stop_ends_it(self, host: MadeUp) -> None:
        host.stop = lambda: True
        with pytest.raises(JobStopped):
            strategies.every_strategy(host)


class TestOtherGpu:
    def test_one_gpu_is_not_enough(self, host: MadeUp) -> None:
        host.facts = {"gpus": 1}
        assert other_gpu.nothing_on_the_first(host).reason == "there is 1 GPU here; it needs two"

    @pytest.mark.parametrize(
        ("on_first", "on_second", "wrong"),
        [
            (0, 500e6, ""),
            (300e6, 500e6, "300 MB more were in use on the first GPU"),
            (0, 0, "nothing of the job was seen on the second GPU"),
        ],
    )
    def test_memory_tells(self, on_first: float, on_second: float, wrong: str, host: MadeUp) -> None:
        host.facts = {"gpus": 2}
        host.used_bytes = lambda device: 1e9 + bool(host.asked) * (on_first if device == "cuda:0" else on_second)
        outcome = other_gpu.nothing_on_the_first(host)
        assert outcome.reason == wrong
        assert host.asked[0].device == "cuda:1"

    def test_without_nvml_it_is_not_run(self, host: MadeUp) -> None:
        host.facts, host.used_bytes = {"gpus": 2}, lambda device: math.nan
        assert other_gpu.nothing_on_the_first(host).status == "not run"


def test_memory_in_use_is_that_of_the_gpu_that_cuda_counts_so(host: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's second is NVML's first."""
    shown = [SimpleNamespace(index=0, uuid="GPU-b"), SimpleNamespace(index=1, uuid="GPU-a")]
    used = {"GPU-a": 1e9, "GPU-b": 2e9}
    nvml = SimpleNamespace(
        gpus=lambda: [SimpleNamespace(uuid=uuid) for uuid in used],
        read=lambda uuid, pids: {"gpu_mem_used_bytes": used[uuid]},
    )
    monkeypatch.setattr(host_module, "visible_gpus", lambda: shown)
    monkeypatch.setattr(host_module, "Nvml", lambda: nvml)
    host.used_bytes = None
    assert [host.memory(f"cuda:{n}") for n in (0, 1)] == [2e9, 1e9]
    assert math.isnan(host.memory("cuda:2"))


class TestNothingLeft:
    RIGHT = (("stopped", ""), ("failed", "killed"), ("failed", "OutOfMemoryError: CUDA out of memory"))

    @pytest.fixture(autouse=True)
    def no_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(leftovers, "job_processes", lambda host: set())
        monkeypatch.setattr(leftovers, "SETTLE_S", 0.01)

    def test_three_ways_to_end(self, host: MadeUp) -> None:
        host.ends = list(self.RIGHT)
        outcome = leftovers.nothing_left(host)
        assert outcome.status == "passed", outcome
        assert outcome.figures["ways"] == ["stop", "kill", "out of memory"]

    def test_memory_that_stays_is_told(self, host: MadeUp) -> None:
        host.ends = list(self.RIGHT)
        host.used_bytes = lambda device: 1e9 + 200e6 * (len(host.asked) > 1)
        assert leftovers.nothing_left(host).reason == "kill: 200 MB of device memory were left"

    def test_processes_that_stay_are_told(self, host: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
        host.ends = list(self.RIGHT)
        worker = Worker()
        monkeypatch.setattr(leftovers, "job_processes", lambda host: {worker} if host.asked else set())
        assert leftovers.nothing_left(host).reason == "stop: 1 processes were left"

    def test_a_wrong_word_for_the_end_is_told(self, host: MadeUp) -> None:
        host.ends = [("done", ""), ("failed", ""), ("failed", "ZeroDivisionError")]
        reason = leftovers.nothing_left(host).reason
        assert reason == "stop: the run is called done (); out of memory: the run is called failed (ZeroDivisionError)"

    def test_on_the_cpu_nothing_runs_out(self, host: MadeUp) -> None:
        host.device, host.ends, host.used_bytes = "cpu", list(self.RIGHT), lambda device: math.nan
        outcome = leftovers.nothing_left(host)
        assert outcome.figures == {"ways": ["stop", "kill"], "memory_looked_at": False}


class TestScripts:
    TEXTS = {  # noqa: RUF012
        "memory": "print('epoch 1: loss 2')",
        "workers": "raise SystemExit('no CUDA')",
        "device": "import time; time.sleep(600)",
    }

    @pytest.fixture(autouse=True)
    def made_up(self, host: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scripts, "NAMES", ("memory", "workers"))
        host.script = lambda config: self.TEXTS[config.strategy]

    def test_each_is_run_and_what_fails_is_named(self, host: MadeUp) -> None:
        outcome = scripts.every_script(host)
        assert (outcome.measured, outcome.reason) == ("1 of 2 trained", "workers: exit status 1, no CUDA")

    def test_one_that_cannot_be_made_is_named(self, host: MadeUp) -> None:
        def refuses(config: RunConfig) -> str:
            raise ConfigError("replay", "host", "leave it out")

        host.script = refuses
        assert scripts.every_script(host).reason.count("leave it out") == 2

    def test_what_is_late_is_ended_and_named(self, host: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scripts, "NAMES", ("device",))
        plain, checks = Host.check, 0

        def late(self: Host) -> None:
            nonlocal checks
            checks += 1
            if checks > 5:
                raise OutOfTime("its time is over")
            plain(self)

        monkeypatch.setattr(Host, "check", late)
        assert scripts.every_script(host).reason == "time ran out before device had ended"
