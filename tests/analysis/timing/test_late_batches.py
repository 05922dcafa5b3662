"""Why batches came late: a cause for each kind of wait, by looks that are written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.series import made_steps, made_telemetry
from vitprof.analysis.signatures import find_signatures
from vitprof.analysis.timing.late_batches import (
    Cause,
    cause_of,
    clustered,
    doing,
    late_batches,
    machine_seen,
    place_of,
    process_seen,
)
from vitprof.analysis.timing.steady import Trace
from vitprof.config.own_script import own_config
from vitprof.recording.late_batches import LateBatch
from vitprof.telemetry.looks import Look, MachineLook, ProcessLook, Stack

PID = 40
N = 6
EVERY_S = 0.1
USUAL_S = 0.2
"""How long other batches take to make."""
MAKING = Stack("dataset.py:41", "PIL.Image.open", ("PIL.Image.open 3", "dataset.get 41"))
POOL = Stack(
    "dataset.py:41",
    "concurrent.futures._base.result",
    ("threading.wait 327", "concurrent.futures._base.result 451", "dataset.get 41"),
)
IDLE = Stack(frames=("selectors.select 415", "torch.utils.data._utils.worker._worker_loop 262"))


def seen(
    process: ProcessLook | Sequence[ProcessLook],
    *,
    used: float = 0.0,
    in_kernel: float = 0.0,
    read_bytes_per_s: float = 0.0,
    queued: float = 0.0,
    threads: float = 0.0,
    others: float = 0.0,
    memory: float = 0.0,
    swapped: float = 0.0,
    stack: Stack | None = MAKING,
    unanswered: bool = False,
    n: int = N,
) -> list[Look]:
    """Looks at a process, or at one that does one thing after the other. Shares of the time: `used` by
    its main thread, a part of that `in_kernel`, in which it was `queued`, used by other `threads`; cores
    that `others` took."""
    each = [process] if isinstance(process, ProcessLook) else list(process)
    taken = []
    for number in range(n):
        at_s = number * EVERY_S
        look = replace(
            each[number % len(each)],
            at_s=100.0 + at_s,
            main_cpu_s=used * at_s,
            main_system_s=in_kernel * at_s,
            queued_s=queued * at_s,
            cpu_s=(used + threads) * at_s,
            major_faults=0.0,
            read_bytes=read_bytes_per_s * at_s,
        )
        ours_s = (used + threads) * at_s
        machine = MachineLook(
            at_s=100.0 + at_s,
            busy_s=ours_s + others * at_s,
            job_s=ours_s,
            memory_pressure_s=memory * at_s,
            swapped_pages=swapped * number,
            cpu_pressure_s=0.0,
            io_pressure_s=0.0,
        )
        late = frozenset([PID]) if unanswered else frozenset()
        stacks = {} if stack is None else {PID: stack}
        taken.append(Look(100.0 + at_s, (look,), machine, stacks, late))
    return taken


def batch(looks: list[Look], **changes: Any) -> LateBatch:
    made = LateBatch(
        step=7,
        waited_s=len(looks) * EVERY_S,
        worker=2,
        looks=len(looks),
        made_meanwhile=True,
        making_s=len(looks) * EVERY_S,
        usual_making_s=USUAL_S,
        maker=process_seen(looks, PID),
        loop=None,
        machine=machine_seen(looks),
    )
    return {**made, **changes}  # type: ignore[typeddict-item]


def asleep(call: str = "", target: str = "", waits_in: str = "", state: str = "S") -> ProcessLook:
    return ProcessLook(PID, state, call=call, target=target, waits_in=waits_in)


RUNNING = ProcessLook(PID, "R")
READS = asleep("read", "/data/old/0481.jpg", state="D")
PAGE = asleep("page", waits_in="folio_wait_bit_common", state="D")


@pytest.mark.parametrize(
    ("name", "looks", "cause"),
    [
        ("a slow file", seen(READS), Cause.FILE),
        ("a fast drive", seen([READS, RUNNING], used=0.4, in_kernel=0.35), Cause.FILE),
        (
            "a drive so fast that no look meets a wait",
            seen(RUNNING, used=0.4, in_kernel=0.35, read_bytes_per_s=3e7),
            Cause.FILE,
        ),
        ("a slow file over FUSE", seen(asleep("read", "/mnt/a.tar")), Cause.FILE),
        ("a file that opens slowly", seen(asleep("open")), Cause.FILE),
        ("a drive that is synced", seen(asleep("sync", "/out/log", state="D")), Cause.FILE),
        ("a page of a mapped file", seen(PAGE), Cause.FILE),
        ("a drive, calls not told", seen(asleep(state="D")), Cause.FILE),
        ("a page of swap", seen(PAGE, memory=0.6, swapped=40), Cause.MEMORY),
        ("pages given away, without swap", seen(PAGE, memory=0.6), Cause.MEMORY),
        (
            "pages given away, and a fast drive",
            seen([PAGE, RUNNING], used=0.4, in_kernel=0.35, read_bytes_per_s=3e7, memory=0.6),
            Cause.MEMORY,
        ),
        ("a sleep", seen(asleep("sleep")), Cause.SLEEP),
        ("a sleep, calls not told", seen(asleep(waits_in="hrtimer_nanosleep")), Cause.SLEEP),
        ("a lock", seen(asleep("futex")), Cause.LOCK),
        ("a lock on a file", seen(asleep("file lock", "/data/a.h5")), Cause.FILE_LOCK),
        (
            "Python's lock",
            seen(asleep("futex"), threads=1.0, stack=None, unanswered=True),
            Cause.PYTHON_LOCK,
        ),
        ("threads that decode", seen(asleep("futex"), threads=1.6), Cause.THREADS),
        ("a program that it started", seen(asleep("wait")), Cause.PROGRAM),
        ("a pipe", seen(asleep("read", "pipe:[7]")), Cause.ELSEWHERE),
        ("a server", seen(asleep("receive", "socket:[7]")), Cause.ELSEWHERE),
        ("a server, polled", seen(asleep("poll")), Cause.ELSEWHERE),
        ("one huge sample", seen(RUNNING, used=0.97), Cause.CPU),
        (
            "garbage collection",
            seen(RUNNING, used=0.97, stack=None, unanswered=True),
            Cause.CPU_ALONE,
        ),
        ("another program", seen(RUNNING, used=0.4, queued=0.6, others=1.5), Cause.OTHER_PROGRAMS),
        ("more workers than cores", seen(RUNNING, used=0.4, queued=0.6), Cause.CORES),
        ("a signal that stops it", seen(ProcessLook(PID, "T"), stack=None), Cause.STOPPED),
        ("a worker that is killed", seen([READS, ProcessLook(PID)]), Cause.ENDED),
    ],
    ids=lambda each: each.replace(" ", "-") if isinstance(each, str) else "",
)
def test_each_kind_of_wait_has_its_cause(name: str, looks: list[Look], cause: Cause) -> None:
    assert cause_of(batch(looks)).cause is cause, name


@pytest.mark.parametrize(
    ("late", "why_not"),
    [
        (batch(seen(RUNNING, used=0.4)), "it did several things"),
        (batch(seen([READS, RUNNING], used=0.4, in_kernel=0.05)), "it did several things"),
        (
            batch(seen(RUNNING, used=0.4, queued=0.4, others=1.5), usual_making_s=0.05),
            "it did several things",
        ),
        # others took its core, and it may have had more to do than usual
        (
            batch(seen(RUNNING, used=0.5, queued=0.45, others=1.5)),
            "it waited for a core, and whether that alone made it late is not clear",
        ),
        (
            batch(seen(RUNNING, used=0.4, queued=0.6, others=1.5), usual_making_s=None),
            "it waited for a core, and how long such a batch takes with one is not known",
        ),
        (batch(seen(RUNNING, used=0.4, in_kernel=0.35)), "it did several things"),
        (
            batch(
                seen(
                    [RUNNING, RUNNING, asleep("sleep")],
                    used=0.4,
                    in_kernel=0.35,
                    read_bytes_per_s=3e7,
                )
            ),
            "it did several things",
        ),
        (
            batch(seen([READS, RUNNING], used=0.65, queued=0.1, in_kernel=0.6)),
            "it did several things",
        ),
        (
            batch(seen([asleep("sleep"), RUNNING], used=0.4, in_kernel=0.35)),
            "it did several things",
        ),
        (batch(seen([READS, asleep("futex")])), "it waited for several things: drive, lock"),
        (batch(seen(READS, memory=0.6)), "it waited for a drive, and memory was short meanwhile"),
        (
            batch(seen(RUNNING, used=0.4, in_kernel=0.35, read_bytes_per_s=3e7, memory=0.6)),
            "it waited for a drive, and memory was short meanwhile",
        ),
        (batch(seen(asleep("futex"), stack=POOL)), "it waited for a thread of its own"),
        (batch(seen(READS, n=1)), "it came before a second look"),
        (batch(seen(asleep())), "it waited, and for what was not seen"),
        (batch(seen(asleep("call 58", state="D"))), "it waited, and for what was not seen"),
        # without its stack a worker that has nothing to do looks like one that waits for a server
        (batch(seen(asleep("poll"), stack=None)), "it waited, and for what was not seen"),
        (batch(seen(asleep("poll"), stack=IDLE)), "it was not being made at most"),
        (batch(seen(READS), made_meanwhile=False), "it was not being made at most"),
        (batch(seen(READS), maker=None), "it is not known which process made it"),
        (
            batch(seen(RUNNING, used=0.4, queued=0.6, others=0.4)),
            "it waited for a core, and who took them is not clear",
        ),
        (
            batch(seen(RUNNING, used=0.4, queued=0.6), machine=None),
            "it waited for a core, and who took them is not known",
        ),
        (batch(seen(RUNNING, used=0.9, queued=math.nan)), "this system does not say"),
    ],
    ids=range(23),
)
def test_mixed_evidence_tells_no_cause(late: LateBatch, why_not: str) -> None:
    told = cause_of(late)
    if late["maker"] is not None and late["maker"]["queued_frac"] is None and late["looks"] > 1:
        # no schedule: what runs with a core nearly all the time still works
        assert told.cause is Cause.CPU
        return
    assert told.cause is Cause.NOT_TOLD
    assert told.why_not.startswith(why_not)


@pytest.mark.parametrize(
    ("looks", "cause"),
    [
        (seen(RUNNING, used=0.4, queued=0.6, others=1.5), Cause.CPU),
        (seen(READS, queued=0.6, others=1.5), Cause.FILE),
        (seen([READS, RUNNING], used=0.16, in_kernel=0.14, queued=0.6, others=1.5), Cause.FILE),
        (seen(asleep("sleep"), queued=0.6, others=1.5), Cause.SLEEP),
    ],
    ids=["work", "a drive", "a fast drive", "a sleep"],
)
def test_a_batch_that_would_be_late_with_a_core_has_the_cause_of_that(
    looks: list[Look], cause: Cause
) -> None:
    usual_s = 0.4 * N * EVERY_S / 10
    assert cause_of(batch(looks, usual_making_s=usual_s)).cause is cause


def test_a_batch_that_is_made_waits_for_the_lock_of_the_worker_that_sends_it() -> None:
    looks = seen(asleep("futex"), stack=None, unanswered=True)
    assert cause_of(batch(looks, made_meanwhile=False)).cause is Cause.PYTHON_LOCK
    looks = seen(RUNNING, used=0.97, stack=None, unanswered=True)
    assert cause_of(batch(looks, made_meanwhile=False)).cause is Cause.CPU_ALONE
    beside_others = seen(RUNNING, used=0.5, queued=0.5, stack=None, unanswered=True)
    assert cause_of(batch(beside_others, made_meanwhile=False)).cause is Cause.NOT_TOLD


def test_shares_are_of_the_time_between_the_readings() -> None:
    """The thread that looks has no core for a while, between the beginning of the last look and what it reads."""
    looks = seen(RUNNING, used=0.6, others=1.4)
    held_up_s = 0.4
    last = looks[-1]
    process = last.processes[0]
    at_s = process.at_s + held_up_s
    used_s = process.main_cpu_s + 0.6 * held_up_s
    process = replace(process, at_s=at_s, main_cpu_s=used_s, cpu_s=used_s)
    busy_s = last.machine.busy_s + 2.0 * held_up_s
    machine = replace(last.machine, at_s=at_s, busy_s=busy_s, job_s=used_s)
    looks[-1] = replace(last, processes=(process,), machine=machine)
    late = batch(looks)
    assert late["maker"] is not None
    assert late["maker"]["own_cpu_frac"] == pytest.approx(0.6)
    assert late["machine"] is not None
    assert late["machine"]["others_cores"] == pytest.approx(1.4)
    assert cause_of(late).cause is Cause.NOT_TOLD, (
        "by the times of the looks it used 108% of a core"
    )


def test_a_call_that_says_nothing_is_no_drive() -> None:
    assert doing(asleep("call 58", state="D")) == "asleep"
    assert doing(asleep(waits_in="request_wait_answer")) == "drive"
    assert doing(asleep("read", "socket:[4]", "folio_wait_bit_common")) == "socket"


def test_a_place_is_that_in_which_it_was_most_often() -> None:
    looks = seen(READS)
    elsewhere = Stack("train.py:3", "", ("train.get 3",), "/data/new/1.jpg")
    looks[0] = replace(looks[0], stacks={PID: elsewhere})
    late = batch(looks)
    assert place_of(late) == "PIL.Image.open <- dataset.py:41"
    assert late["maker"] is not None
    assert late["maker"]["file"] == "/data/old/0481.jpg"


def test_the_file_that_was_opened_last_is_named_where_no_call_tells_one() -> None:
    stack = replace(MAKING, opened="/data/a.jpg")
    late = batch(seen(asleep("open"), stack=stack))
    assert late["maker"] is not None
    assert late["maker"]["file"] == "/data/a.jpg"


def of(looks: list[Look], step: int, waited_s: float, worker: int = 2) -> LateBatch:
    return batch(looks, step=step, waited_s=waited_s, worker=worker)


def test_batches_with_one_cause_in_one_folder_are_told_together() -> None:
    slept = seen(asleep("sleep"))
    other = seen(asleep("read", "/data/old/0007.jpg", state="D"))
    elsewhere = seen(asleep("read", "/data/new/0007.jpg", state="D"))
    listed = [of(seen(READS), 9, 2.0), of(slept, 12, 1.5), of(other, 15, 4.0), of(slept, 20, 1.0)]
    listed.append(of(elsewhere, 22, 0.5))
    clusters = clustered(listed)
    assert [(each.n, each.waited_s) for each in clusters] == [(2, 6.0), (2, 2.5), (1, 0.5)]
    assert clusters[0].longest["step"] == 15
    found = late_batches({"late_batches": {"late": 5, "waited_s": 9.0, "listed": listed}})
    assert found is not None
    assert found.sentence == (
        "5 batches were late, 9.00 s of waits in all. Most of it, 2 of them, 6.00 s: worker 2 waited "
        "for a drive in PIL.Image.open <- dataset.py:41, /data/old/0007.jpg."
    )


def test_a_cause_that_is_told_comes_before_a_longer_wait_without_one() -> None:
    untold = of(seen(RUNNING, used=0.4), 9, 5.0, 1)
    listed = [untold, of(seen(asleep("sleep")), 12, 2.0)]
    found = late_batches({"late_batches": {"late": 2, "waited_s": 7.0, "listed": listed}})
    assert found is not None
    assert found.sentence == (
        "2 batches were late, 7.00 s of waits in all. 1 of them, 2.00 s: worker 2 slept, as it was "
        "told to in PIL.Image.open <- dataset.py:41."
    )


def test_those_without_a_cause_are_told_with_the_reason() -> None:
    mixed = [of(seen(RUNNING, used=used), 9, 2.0, worker) for used, worker in ((0.4, 1), (0.5, 2))]
    found = late_batches({"late_batches": {"late": 2, "waited_s": 4.0, "listed": mixed}})
    assert found is not None
    assert found.sentence == (
        "2 batches were late, 4.00 s of waits in all: the cause is not told, as it did several things "
        "(it used a core 40% of the time, and waited for one 0.0%)."
    )


def test_nothing_is_told_of_a_run_without_any() -> None:
    assert late_batches({}) is None
    assert late_batches({"late_batches": {"not_seen": "no /proc"}}) is None
    assert late_batches({"late_batches": {"late": 0, "waited_s": 0.0, "listed": []}}) is None


def test_a_line_says_so_where_they_cost_a_part_of_the_time() -> None:
    waits_s = np.full(60, 0.001)
    waits_s[40] = 2.0
    steps = made_steps(waits_s, 0.01, warmup=5)

    def signatures(step: int) -> dict[str, Any]:
        listed = [of(seen(READS), step, 2.0)]
        facts = {"late_batches": {"late": 1, "waited_s": 2.0, "listed": listed}}
        trace = Trace(steps, made_telemetry(), own_config("mine"), facts)
        return {each.name: each for each in find_signatures(trace)}

    found = signatures(40)["late-batches"]
    assert found.sentence == (
        "1 batch was late, 2.00 s of waits in all: worker 2 waited for a drive in "
        "PIL.Image.open <- dataset.py:41, /data/old/0481.jpg."
    )
    assert found.cost_frac == pytest.approx(2.0 / steps["step_s"][5:].sum(), rel=0.1)
    assert "late-batches" not in signatures(41)
