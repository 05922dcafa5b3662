"""Other runs at the same time are said once."""

from __future__ import annotations

import pytest

from vitprof.recording.shared_machine import SHARED, as_shown, notice

COPIED = "copied the data set to the ram disk"
OF_ANOTHER = {n: notice(f"run {n} of another store", "cpu", f"process {n}") for n in range(41, 60)}
HERE = {n: notice(f"run {n}", "cuda:0", "workers, batch 64") for n in range(1, 9)}
JOB = notice("a job", "cpu", "a watched script, process 9")


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([OF_ANOTHER[n] for n in (51, 52, 53, 54)], "runs 51 to 54 of another store"),
        ([OF_ANOTHER[n] for n in (46, 43, 44)], "runs 43, 44 and 46 of another store"),
        ([HERE[3], HERE[7]], "runs 3 and 7"),
        ([HERE[3], OF_ANOTHER[44], JOB], "run 3, run 44 of another store and a job"),
        ([JOB, JOB.replace("9", "8")], "2 jobs"),
    ],
)
def test_several_runs_at_the_same_time_are_said_once(others: list[str], words: str) -> None:
    assert as_shown([COPIED, *others, "throttled"]) == (COPIED, f"{words} {SHARED}", "throttled")


def test_one_alone_is_said_with_its_device_and_program() -> None:
    assert as_shown([OF_ANOTHER[51], COPIED]) == (OF_ANOTHER[51], COPIED)
    assert as_shown([]) == ()
