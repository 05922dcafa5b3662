"""A trace as a run of the store: judged as any other, stored whole or not at all."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.traces.written import GPU, WrittenTrace, trained_on_cpu, trained_on_gpu
from vitprof.analysis.compare.differences import RunFacts
from vitprof.analysis.compare.guard import comparability
from vitprof.export.bundle import bundle_bytes, import_bundle
from vitprof.jobs import trace_runs
from vitprof.jobs.trace_runs import add_trace
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.store import RunStore, StoredRun
from vitprof.traces.trace_file import Progress, TraceError

Add = Callable[..., StoredRun]


@pytest.fixture
def add(mine: RunStore, tmp_path: Path) -> Add:
    """Adds a written trace to the store."""

    def added(trace: WrittenTrace, **known: int) -> StoredRun:
        path = trace.write(tmp_path / "worker0.pt.trace.json.gz")
        return add_trace(mine, path, **known)  # type: ignore[arg-type]

    return added


def starved(n: int = 40) -> WrittenTrace:
    """A GPU that waits 10 ms for data, 1 ms for a copy, and works 4 ms."""
    how = {"wait_ms": 10.0, "copy_ms": 1.0, "work_ms": 4.0, "launch_ms": 0.4}
    return trained_on_gpu(n, **how, waits_for_work=True)  # type: ignore[arg-type]


def test_a_starved_gpu(add: Add, mine: RunStore) -> None:
    run = add(starved(), batch_size=64)
    verdict = run.verdict
    assert verdict is not None
    assert verdict.kind == "input-bound"
    assert verdict.idle_frac == pytest.approx(11.0 / 15.015, abs=0.001)
    assert verdict.idle_frac_low <= verdict.idle_frac <= verdict.idle_frac_high
    assert verdict.cause == "loading"
    shares = {share.name: share.frac for share in verdict.shares}
    assert shares == pytest.approx({"loading": 10 / 11, "transfer": 1 / 11}, abs=0.001)
    assert verdict.advice[0].words == "watching the script: vitprof watch -- python train.py"
    assert (run.status, run.name) == ("done", "worker0.pt.trace.json.gz")
    assert run.config.device == "cuda:0"
    summary = run.summary
    assert summary is not None
    assert summary.samples_per_s == pytest.approx(64 / 0.015015, rel=0.001)
    assert summary.n_steps == 40
    steps = mine.steps(run.id)
    assert set(STEP_COLUMNS) <= set(steps)
    assert run.facts["trace"]["device_events"] == 40 * 5
    assert not run.facts.get("command")


@pytest.mark.parametrize(
    ("trace", "kind"),
    [
        (trained_on_gpu(40, wait_ms=0.2, work_ms=6.0, launch_ms=0.4), "not input-bound"),
        (trained_on_gpu(40, wait_ms=0.1, launch_ms=6.0, work_ms=1.0, n_kernels=20), "launch-bound"),
        (
            trained_on_gpu(40, wait_ms=1.0, work_ms=8.0, launch_ms=0.4, waits_for_work=True),
            "moderately input-bound",
        ),
        (trained_on_cpu(40, wait_ms=7.0, work_ms=3.0), "input-bound"),
        (trained_on_cpu(40, wait_ms=0.1, work_ms=9.9), "not input-bound"),
    ],
)
def test_each_class_of_a_verdict(add: Add, trace: WrittenTrace, kind: str) -> None:
    verdict = add(trace).verdict
    assert verdict is not None
    assert verdict.kind == kind, verdict.sentence


def _without_loader() -> WrittenTrace:
    trace = starved()
    trace.events = [each for each in trace.events if not str(each["name"]).startswith("enumerate")]
    return trace


def _of_a_rank() -> WrittenTrace:
    trace = starved()
    trace.about["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 4}
    return trace


def _cpu_on_a_gpu_machine() -> WrittenTrace:
    trace = trained_on_cpu(40, wait_ms=7.0, work_ms=3.0)
    trace.about["deviceProperties"] = [GPU]
    return trace


@pytest.mark.parametrize(
    ("trace", "reason", "said"),
    [
        (
            trained_on_gpu(12, wait_ms=0.5, work_ms=6.0, launch_ms=0.4),
            "too_few_steps",
            "12 steps were recorded",
        ),
        (_without_loader(), "no_loader", "The waits of 40 of 40 steps are not known"),
        (_of_a_rank(), "lone_rank", "4 ranks train, and this one alone was recorded"),
        (
            _cpu_on_a_gpu_machine(),
            "untimed_device",
            "vitprof cannot time the GPU of this trace, which has no event of it",
        ),
    ],
)
def test_what_cannot_be_told_has_no_verdict(
    add: Add, trace: WrittenTrace, reason: str, said: str
) -> None:
    verdict = add(trace).verdict
    assert verdict is not None
    assert verdict.kind == "inconclusive"
    assert verdict.why_none is not None
    assert verdict.why_none.reason == reason
    assert said in verdict.sentence
    assert not verdict.advice
    assert verdict.gain is None


def test_few_steps_that_all_wait_are_almost_certainly_starved(add: Add) -> None:
    verdict = add(starved(8)).verdict
    assert verdict is not None
    assert verdict.sentence.startswith("Almost certainly starved.")


def test_it_can_be_sent_to_another_store(add: Add, mine: RunStore, tmp_path: Path) -> None:
    run = add(starved(), batch_size=64)
    other = RunStore(f"sqlite:///{tmp_path / 'other.sqlite'}")
    import_bundle(other, io.BytesIO(bundle_bytes(mine, [run.id])))
    (came,) = other.runs()
    assert came.facts["trace"] == run.facts["trace"]
    assert came.verdict is not None
    assert run.verdict is not None
    assert came.verdict.sentence == run.verdict.sentence
    assert np.array_equal(mine.steps(run.id)["gap_s"], other.steps(came.id)["gap_s"])
    other.close()


def test_beside_a_run_that_was_recorded_the_profiler_is_named(add: Add) -> None:
    run = add(starved(), batch_size=64)
    traced = RunFacts(1, run.config, facts=run.facts)
    recorded = RunFacts(2, run.config, facts={})
    assert "profiler" in {caveat.topic for caveat in comparability([traced, recorded])}
    again = RunFacts(3, run.config, facts=run.facts)
    assert "profiler" not in {caveat.topic for caveat in comparability([traced, again])}


@pytest.mark.parametrize("error", [KeyboardInterrupt, TraceError])
def test_what_ends_in_the_middle_leaves_nothing(
    mine: RunStore, tmp_path: Path, error: type[BaseException]
) -> None:
    path = starved().write(tmp_path / "a.pt.trace.json")
    if error is TraceError:
        path.write_bytes(path.read_bytes()[:-100])

    def interrupted(_: Progress) -> None:
        if error is KeyboardInterrupt:
            raise KeyboardInterrupt

    with pytest.raises(error):
        add_trace(mine, path, on_progress=interrupted)
    assert not mine.runs()


def test_a_store_that_fails_has_nothing_of_it(
    mine: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are written after the run itself, in the same transaction."""
    monkeypatch.setattr(trace_runs, "NO_TELEMETRY", dict(trace_runs.NO_TELEMETRY))
    path = starved().write(tmp_path / "a.pt.trace.json")
    columns = trace_runs.run_columns

    def wrong(*args: object) -> dict[str, object]:
        trace_runs.NO_TELEMETRY.pop("seq")
        return columns(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(trace_runs, "run_columns", wrong)
    with pytest.raises(KeyError):
        add_trace(mine, path)
    assert not mine.runs()
