"""The phases of a job's start, from marks made by hand."""

from __future__ import annotations

import math

import pytest

from vitprof.analysis.timing.summary import COPYING, FIRST_BATCH, MODEL, PREPARING, PROCESS, start_phases
from vitprof.recording.columns import Phase

STARTUP, PREPARE, STAGE = Phase("startup", 102.0, 102.5), Phase("prepare", 102.5, 104.0), Phase("stage", 104.0, 110.0)


def told(
    phases: tuple[Phase, ...], *, training: float | None = None, now: float = 112.0, copies: bool = False
) -> dict[str, tuple[float, bool]]:
    found = start_phases(100.0, phases, training, now, copies=copies)
    return {p.name: (p.seconds, p.running) for p in found}


def test_nothing_is_known_before_the_process_reports() -> None:
    found = told((), now=101.5)
    assert found[PROCESS] == (1.5, True)
    assert all(math.isnan(found[name][0]) and not found[name][1] for name in (PREPARING, MODEL, FIRST_BATCH))


def test_each_phase_has_its_seconds_and_one_goes_on() -> None:
    assert told((STARTUP,), now=103.0)[PREPARING] == (0.5, True)
    found = told((STARTUP, PREPARE, STAGE, Phase("startup", 110.0, 111.0)), training=111.25, copies=True)
    assert found == {
        PROCESS: (2.5, False),
        PREPARING: (1.5, False),
        COPYING: (6.0, False),
        MODEL: (1.25, False),
        FIRST_BATCH: (0.75, True),
    }
    assert sum(seconds for seconds, _ in found.values()) == pytest.approx(12.0), "all of the time since it left"


def test_what_ended_unseen_took_no_time_of_its_own() -> None:
    found = told((STARTUP,), training=111.0)
    assert found[PREPARING] == (8.5, False)
    assert found[MODEL] == (0.0, False)
    assert COPYING not in found


def test_a_run_whose_clock_is_not_known_yet() -> None:
    assert start_phases(None, (), None, 5.0, copies=False)[0].seconds == 0.0
