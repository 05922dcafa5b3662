"""Built-in runs on a GPU whose times are known: what it does, and what is said where it fails."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import nullcuda
from tests.watch.watching import Host
from vitprof.config import RunConfig
from vitprof.config.availability import why_unavailable
from vitprof.config.strategies import STRATEGIES
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.datasets.catalog import DATASETS
from vitprof.experiments.headroom_runs import measure_headroom
from vitprof.experiments.tournament import tournament_runner
from vitprof.experiments.tournament.planning import create_tournament
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.experiments.trials import Trial, run_trials
from vitprof.jobs.manager import JobManager
from vitprof.jobs.runners import Launcher
from vitprof.store import RunStore

POINTS = 0.02
KERNEL_S, COPY_S, BYTES_PER_S = 100e-6, 500e-6, 10e6
DEVICE = {"NULLCUDA_KERNEL_US": str(KERNEL_S * 1e6), "NULLCUDA_COPY_US": str(COPY_S * 1e6)}
DEVICE |= dict.fromkeys(("NULLCUDA_COPY_GBPS", "NULLCUDA_PAGEABLE_GBPS"), str(BYTES_PER_S / 1e9))
"""A slow one, so that the host never is what takes time."""
IMAGES, LABELS = 32 * 28 * 28, 32 * 8
MOVED_S = (IMAGES + LABELS) / BYTES_PER_S
COPIES_S = {
    "blocking": 2 * COPY_S + MOVED_S,
    "pinned": COPY_S + MOVED_S,
    "stream": COPY_S + MOVED_S,
    "resident": 0.0,
}
PARTS = ("forward", "backward", "optimizer")
DIGITS = DATASETS["digits"]
SECOND = "GPU-6e756c6c-6375-6461-4000-800000000001"
SLICE = "MIG-6e756c6c-6375-646d-4000-800000000001"
TWO = {"NULLCUDA_DEVICES": "2"}


def trained(
    forks: Host, home: str, *settings: dict[str, Any], env: dict[str, str], **more: float
) -> list[Any]:
    done = forks.run("runs", watched=False, env=env, home=home, settings=settings, **more)
    assert done.status == 0, done.complaint
    runs: list[Any] = json.loads(done.returned)
    for run in runs:
        run["steps"] = {
            name: np.asarray(values, dtype=float) for name, values in run["steps"].items()
        }
    return runs


@pytest.mark.measured
@pytest.mark.parametrize("transfer", COPIES_S)
def test_each_transfer_and_precision(forks: Host, home: str, transfer: str) -> None:
    """Copies take what the device's rate says; the model, all that its kernels take."""
    precisions = ("fp32", "tf32", "bf16", "fp16")
    settings = [
        {"transfer": transfer, "precision": precision, "steps": 18} for precision in precisions
    ]
    runs = trained(forks, home, *settings, env=DEVICE)
    # the quickest of all: a host that others hold up between mark and copy makes any of them longer
    copied_s = min(run["steps"]["h2d_s"].min() for run in runs)
    assert -1e-5 <= copied_s - COPIES_S[transfer] < max(1e-3, COPIES_S[transfer] / 2)
    for run in runs:
        steps = run["steps"]
        assert run["n"] == 18
        worked_s = run["busy_s"] - len(steps["step"]) * COPIES_S[transfer]
        assert steps["compute_s"].sum() >= worked_s * (1 - POINTS) - np.median(steps["compute_s"])
        assert np.median(steps["compute_s"]) > 50 * KERNEL_S
        forward_s, backward_s, optimizer_s = (steps[f"{part}_compute_s"] for part in PARTS)
        divided = np.isfinite(optimizer_s)
        assert divided.any()
        prepare_s = np.nan_to_num(steps["device_prepare_s"][divided])
        whole_s = (forward_s + backward_s + optimizer_s)[divided] + prepare_s
        assert whole_s == pytest.approx(steps["compute_s"][divided], abs=1e-9)
        # a kernel of the backward pass for each input of a product
        assert np.median(backward_s[divided]) > np.median(forward_s[divided]) > 20 * KERNEL_S
        assert optimizer_s[divided].min() >= KERNEL_S * (1 - POINTS)


@pytest.mark.measured
@pytest.mark.parametrize("transfer", ["blocking", "pinned", "stream"])
def test_a_starved_run_idles_as_long_as_the_device_says(
    forks: Host, home: str, transfer: str
) -> None:
    """At least as long as reading takes longer than its work; what passes from the copy to the first kernel counts as
    compute, which is a while on a busy machine."""
    env = {"NULLCUDA_KERNEL_US": "200"}
    (run,) = trained(forks, home, {"transfer": transfer, "inject": "read:30", "steps": 45}, env=env)
    steps = run["steps"]
    points_s, idle_s = POINTS * np.median(steps["step_s"]), np.median(steps["gap_s"])
    assert (
        0.03 - run["busy_s"] / len(steps["step"]) - points_s
        < idle_s
        < np.median(run["idle_s"]) + points_s
    )
    assert (
        0.2
        < steps["exposed_wait_s"].sum() / steps["step_s"].sum()
        < 1 - run["busy_s"] / run["wall_s"] + POINTS
    )


@pytest.mark.measured
def test_bubbles_between_launches_are_told_from_kernels(forks: Host, home: str) -> None:
    """Steps behind gates measure what kernels take; what is left of compute is idle time, as the device says."""
    settings = {"transfer": "blocking", "batch_size": 20, "warmup_steps": 10, "steps": 60}
    quick_copies = {"NULLCUDA_COPY_US": "0.1", "NULLCUDA_PAGEABLE_GBPS": "1000"}
    (run,) = trained(forks, home, settings, env=quick_copies, since=30)
    steps = run["steps"]
    assert (
        len(run["kernel_s"]) >= 3
    )  # a host that others held up launched its last work after the gate
    assert np.median(run["kernel_s"]) == pytest.approx(run["busy_s"] / len(steps["step"]), rel=0.05)
    idle = (steps["gap_s"] + steps["launch_idle_s"]).sum() / steps["step_s"].sum()
    assert idle == pytest.approx(1 - run["busy_s"] / run["wall_s"], abs=0.05)
    assert steps["launch_idle_s"].min() > 0


@pytest.mark.measured
def test_what_keeps_python_from_launching_is_measured(forks: Host, home: str) -> None:
    (run,) = trained(forks, home, {"steps": 12}, env={}, asleep_s=0.001)
    assert 0.5 < run["facts"]["held_up_frac"] < 1


@pytest.mark.measured
def test_every_strategy(forks: Host, home: str) -> None:
    settings = []
    for name, plan in STRATEGIES.items():
        if not why_unavailable(plan, DIGITS):
            taken = plan.knobs(plan.combination(DIGITS), DIGITS)
            wanted = {
                "workers": int(name in ("workers", "threads", "spdl")),
                "slow_mb_s": 1000.0,
                "slow_latency_ms": 0.1,
            }
            settings.append(
                {"strategy": name, "steps": 8} | {k: v for k, v in wanted.items() if k in taken}
            )
    assert len(settings) > 17
    for run in trained(forks, home, *settings, env={}):
        assert (run["n"], run["facts"]["device"]) == (8, "cuda:0")
        assert np.nanmin(run["steps"]["compute_s"]) > 0


@pytest.mark.parametrize(
    ("device", "env"),
    [
        ("cuda:1", TWO),
        ("cuda:0", TWO | {"CUDA_VISIBLE_DEVICES": "1"}),
        ("cuda:0", TWO | {"CUDA_VISIBLE_DEVICES": SECOND}),
        ("cuda:0", TWO | {"CUDA_VISIBLE_DEVICES": SLICE, "NULLCUDA_MIG": "1"}),
    ],
    ids=["cuda:1", "visible by number", "visible by UUID", "a slice"],
)
def test_the_second_of_two_cards(forks: Host, home: str, device: str, env: dict[str, str]) -> None:
    (run,) = trained(forks, home, {"device": device, "steps": 10}, env=env, card=1)
    assert run["facts"]["device"] == device
    assert run["facts"]["gpu_uuid"] == (SLICE if "NULLCUDA_MIG" in env else SECOND)
    assert run["facts"]["gpu_mem_allocated_peak_bytes"] > 0
    assert run["busy_s"] > 0


FORK = "; start this process by spawn or forkserver, or fork it before CUDA is used, or choose device cpu"


@pytest.mark.parametrize(
    ("env", "how", "most_steps", "begins", "says"),
    [
        (
            {"MEM_MB": "600"},
            {"settings": {"steps": 30, "batch_size": 200}, "fill_at": 7},
            8,
            "CUDA out of memory on NVIDIA Null GPU: it asked for ",
            "; try batch size 100",
        ),
        (
            {"FAIL_AT": "1", "FAIL_CODE": "209"},
            {"settings": {"steps": 2}},
            0,
            "device cuda:0: NVIDIA Null GPU: a first kernel failed (AcceleratorError: CUDA error: no kernel image is ",
            "; install a PyTorch that has kernels for it, or choose device cpu",
        ),
        (
            {"FAIL_AT": "3000", "FAIL_CODE": "700"},
            {"settings": {"steps": 60}},
            59,
            "",
            "an illegal memory access",
        ),
        (
            {"FAIL_AT": "3000", "FAIL_CODE": "214"},
            {"settings": {"steps": 60}},
            59,
            "",
            "uncorrectable ECC error",
        ),
        ({}, {}, 0, "device cuda:0: ", FORK),
    ],
    ids=[
        "memory filled at step 7",
        "no kernels for this card",
        "fails in the middle",
        "ECC",
        "a fork that used CUDA",
    ],
)
def test_what_a_run_that_fails_says(
    forks: Host,
    home: str,
    env: dict[str, str],
    how: dict[str, Any],
    most_steps: int,
    begins: str,
    says: str,
) -> None:
    env = {f"NULLCUDA_{name}": value for name, value in env.items()}
    done = forks.run("error" if how else "forked", watched=False, env=env, home=home, **how)
    assert (done.status, done.returned.count("\n")) == (0, 0), done.complaint
    steps, _, line = done.returned.partition(" ")
    assert (how.get("fill_at", most_steps > 0)) <= int(steps) <= most_steps
    assert line.startswith(begins)
    assert says in line


JOB = RunConfig(
    device="cuda:0", strategy="memory", batch_size=64, threads=1, evaluate=False, steps=40
)


@pytest.mark.measured
def test_a_tournament_headroom_and_a_failure(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: RunStore
) -> None:
    """All are forks of one warm process, which must not have used CUDA: no setting gave a figure then."""
    device = {"VITPROF_WARM": "1", "OMP_NUM_THREADS": "1"} | nullcuda.environment(shm)
    for name, value in device.items():
        monkeypatch.setenv(name, value)
    launcher = Launcher().warm()
    manager = JobManager(store, logs=tmp_path, launcher=launcher)
    try:
        launcher.wait(threading.Event())
        how: dict[str, Any] = {"repeats": 1, "until_decided": False, "early_stop": False}
        number = create_tournament(store, TournamentSpec(JOB, ("memory", "device"), (64,), **how))
        monkeypatch.setattr(tournament_runner, "why_not_here", lambda config, machine: "")
        runner = tournament_runner.TournamentRunner(manager, number)
        assert runner.join(60), runner.error
        rows = TournamentView(store, number).board().rows
        assert [row.entry.status for row in rows] == ["done", "done"]
        first = store.runs(oldest_first=True)[0]
        headroom = measure_headroom(manager, first, repeats=1)
        assert headroom is not None
        assert all(anchor.s_per_sample > 0 for anchor in headroom.anchors)
        monkeypatch.setenv("NULLCUDA_FAIL_AT", "2000")
        [(_, run_id)] = run_trials(manager, [Trial(JOB, "")], "")
        assert "CUDA error: " in store.run(run_id).error
    finally:
        manager.shutdown()
        launcher.close()
