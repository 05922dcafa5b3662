"""Predictions from made runs: one rule for each way in which loading and compute overlap."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.series import made_steps
from vitprof.analysis.verdict.prediction import (
    UNVERIFIED_ERROR,
    Calibration,
    Prediction,
    calibration,
    predict,
)
from vitprof.config import RunConfig

SAMPLES = 10


def foresee(
    fetch: float,
    compute: Any,
    h2d: Any = 0.0,
    *,
    host: Any = 0.0,
    n: int = 40,
    error: float = 0.0,
    **parts: Any,
) -> Prediction:
    """Seconds a step; the loader-only run of a blocking transfer has its copies in its steps."""
    trains = {name: parts.pop(name, usual) for name, usual in (("on_cpu", False), ("cores", 4))}
    chosen = RunConfig(**({"loader": "batches", "transfer": "blocking", "threads": 1} | parts))
    profile = made_steps([0.001] * n, compute, warmup=5, host_s=host)
    micro = made_steps([fetch] * n, 0.0, h2d=np.mean(h2d), warmup=5) | {
        "h2d_s": np.broadcast_to(h2d, n)
    }
    if chosen.transfer != "blocking":  # the copy runs beside the next fetch
        micro["step_s"] = np.full(n, fetch)
    found = predict(
        profile, micro, chosen, profile_transfer="pinned", expected_error=error, **trains
    )
    assert found is not None
    return found


def takes(found: Prediction) -> float:
    """Seconds a step."""
    return SAMPLES / found.samples_per_s


class TestAsynchronousDevice:
    @pytest.mark.parametrize(
        ("transfer", "fetch", "compute", "h2d", "expected"),
        [
            ("blocking", 0.02, 0.05, 0.01, 0.06),
            ("blocking", 0.08, 0.05, 0.01, 0.09),
            ("pinned", 0.02, 0.05, 0.01, 0.06),
            ("pinned", 0.08, 0.05, 0.01, 0.08),
            ("stream", 0.02, 0.05, 0.01, 0.05),
            ("stream", 0.02, 0.05, 0.07, 0.07),
            ("resident", 0.02, 0.05, 0.0, 0.05),
            ("resident", 0.08, 0.05, 0.0, 0.08),
        ],
    )
    def test_what_overlaps(
        self, transfer: str, fetch: float, compute: float, h2d: float, expected: float
    ) -> None:
        found = foresee(fetch, compute, h2d, transfer=transfer)
        assert takes(found) == pytest.approx(expected)
        assert (found.low, found.high) == pytest.approx(
            (found.samples_per_s,) * 2
        )  # nothing varies

    @pytest.mark.parametrize(("loader", "expected"), [("batches", 0.085), ("ahead", 0.08)])
    def test_launching_keeps_the_loop_from_fetching(self, loader: str, expected: float) -> None:
        host = [0.005] * 3 + [0.05] * 37  # then the queue is full
        assert takes(
            foresee(0.08, 0.05, host=host, loader=loader, transfer="pinned")
        ) == pytest.approx(expected)

    def test_a_copy_that_ended_late_once_is_not_the_copy(self) -> None:
        late = np.where(np.arange(40) == 20, 0.5, 0.001)
        assert takes(foresee(0.01, 0.05, late, transfer="pinned")) == pytest.approx(0.051)


class TestCpu:
    @pytest.mark.parametrize(
        ("parts", "expected"),
        [
            *(
                (parts, 0.07)
                for parts in ({}, {"loader": "generator"}, {"loader": "dataloader", "workers": 0})
            ),
            (
                {"cores": 4, "loader": "dataloader", "workers": 2, "transfer": "pinned"},
                0.05,
            ),  # cores of their own
            (
                {"cores": 1, "loader": "dataloader", "workers": 2, "transfer": "pinned"},
                0.07,
            ),  # one after another
        ],
    )
    def test_all_adds_up_in_the_loop_or_on_the_same_core(self, parts: Any, expected: float) -> None:
        assert takes(foresee(0.02, 0.05, on_cpu=True, **parts)) == pytest.approx(expected)

    @given(st.floats(0.001, 1.0), st.floats(0.001, 1.0), st.integers(1, 64), st.integers(1, 32))
    def test_in_the_background(
        self, fetch: float, compute: float, cores: int, workers: int
    ) -> None:
        loader = {"loader": "dataloader", "workers": workers, "transfer": "pinned"}
        found = foresee(fetch, compute, on_cpu=True, cores=cores, **loader)
        least, most = SAMPLES / (fetch + compute), SAMPLES / max(fetch, compute)
        assert (
            least * (1 - 1e-9)
            <= found.low
            <= found.samples_per_s
            <= found.high
            <= most * (1 + 1e-9)
        )


class TestInterval:
    def test_it_is_widened_by_the_error_so_far_and_by_noise(self) -> None:
        found = foresee(0.05, 0.02, error=0.25)
        assert (found.low, found.high) == pytest.approx(
            (found.samples_per_s / 1.25, found.samples_per_s * 1.25)
        )
        found = foresee(0.02, 0.05, error=0.25)
        assert found.high == pytest.approx(found.samples_per_s), (
            "no loader is faster than the device"
        )
        found = foresee(
            0.001, np.random.default_rng(3).gamma(4, 0.02, 60), n=60, cores=2, transfer="pinned"
        )
        assert found.low < 0.95 * found.samples_per_s < found.samples_per_s < 0.95 * found.high

    def test_noise_of_two_runs_is_independent(self) -> None:
        """On the CPU, in the loop, a step takes fetch + compute: their variances add up, not their
        deviations, though the steps of both runs happen to go up and down together."""
        noise = np.exp(0.2 * np.random.default_rng(0).standard_normal(400))
        fetches = computes = 0.05 * noise

        def spread(fetch: Any, compute: Any) -> float:
            config = RunConfig(loader="batches", transfer="blocking", threads=1)
            profile = made_steps([0.001] * 400, compute, warmup=5)
            micro = made_steps(fetch, 0.0, warmup=5) | {"h2d_s": np.zeros(400)}
            found = predict(
                profile,
                micro,
                config,
                profile_transfer="pinned",
                on_cpu=True,
                cores=4,
                expected_error=0.0,
            )
            assert found is not None
            return (found.high - found.low) / found.samples_per_s

        even = np.full(400, 0.05)
        alone = spread(fetches, even), spread(even, computes)
        assert spread(fetches, computes) == pytest.approx(math.hypot(*alone), rel=0.1)

    def test_no_steady_steps(self) -> None:
        steps, none = made_steps([0.1] * 9, [0.1] * 9) | {"host_s": np.zeros(9)}, made_steps([], [])
        for profile, micro in ((steps, none), (none, steps)):
            assert (
                predict(
                    profile, micro, RunConfig(), profile_transfer="pinned", on_cpu=True, cores=1
                )
                is None
            )


class TestCalibration:
    def test_by_hand_and_none(self) -> None:
        found = calibration([(110, 90, 120, 100), (95, 90, 100, 100), (50, 40, 60, 100)])
        assert found == Calibration(
            3, pytest.approx(0.1), pytest.approx(2 / 3), pytest.approx(0.42)
        )
        assert found.expected_error == pytest.approx(0.42)
        none = calibration([])
        assert (none.n, none.expected_error, math.isnan(none.median_abs_error)) == (
            0,
            UNVERIFIED_ERROR,
            True,
        )

    @pytest.mark.parametrize(
        ("n", "expected"), [(1, UNVERIFIED_ERROR), (9, UNVERIFIED_ERROR), (10, 0.02)]
    )
    def test_a_small_error_is_believed_when_ten_were_checked(self, n: int, expected: float) -> None:
        assert calibration([(102, 90, 120, 100)] * n).expected_error == pytest.approx(expected)
