"""Which waits are told as late, and who made those batches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.watch.core.test_messages import PROCESS, Run
from tests.watch.core.written import TRAIN, Script
from vitprof.measure.wire import Note
from vitprof.watch.core.columns import WARMUP_STEPS
from vitprof.watch.events import Description

LOOKED_AT = {"pending": 9}
PIDS = [71, 72]


def script(wait_s: float = 0.3) -> Script:
    """A script whose workers take so long for each batch."""
    made = Script(wait_s=wait_s)
    made.begin(TRAIN)
    (iterator,) = (d for d in made.log.descriptions.values() if d.kind == "iterator")
    facts = {"loader": TRAIN, "pids": PIDS}
    made.log.descriptions[iterator.number] = Description(iterator.number, "iterator", facts)
    return made


def train(of: Script, n: int, **made: Any) -> None:
    for number in range(n):
        of.fetch_made(TRAIN, **{"worker": number % 2, **made})
        of.backward()
        of.update()


def late(run: Run) -> list[dict[str, Any]]:
    return [batch for note in run.note("late") for batch in note["batches"]]


def test_waits_after_the_warm_up_are_told_with_the_process_that_made_the_batch() -> None:
    of = script()
    train(of, WARMUP_STEPS + 3)
    run = Run(of, **LOOKED_AT).close()
    told = late(run)
    assert [batch["step"] for batch in told] == [5, 6, 7]
    assert [batch["worker"] for batch in told] == [1, 0, 1]
    assert [batch["pid"] for batch in told] == [72, 71, 72]
    first = told[0]
    assert first["waited_s"] == pytest.approx(0.3)
    assert first["made_s"] - first["begun_s"] == pytest.approx(0.3)
    requests = [event.at_s for event in of.log.events if event.kind.name == "REQUESTED"]
    assert first["requested_s"] == [requests[5]], "to the bit: it is the word that the hook wrote"


def test_each_is_told_once_and_in_the_numbers_of_the_run() -> None:
    of = script()
    run = Run(of, **LOOKED_AT)
    for _ in range(4):
        train(of, 4)
        run.settle(later_s=2.0)
    run.close()
    assert [batch["step"] for batch in late(run)] == list(range(WARMUP_STEPS, 16))


def test_short_waits_and_the_first_of_an_iteration_are_not_told() -> None:
    of = script(wait_s=0.05)
    train(of, 12)
    assert late(Run(of, **LOOKED_AT).close()) == []
    of = script()
    train(of, 6)
    of.exhaust(TRAIN)
    of.begin(TRAIN, seconds=0.5)
    train(of, 2)
    assert [batch["step"] for batch in late(Run(of, **LOOKED_AT).close())] == [5, 7]


def test_a_batch_of_the_loop_itself_has_no_worker() -> None:
    of = script()
    train(of, 7, worker=float("nan"))
    told = late(Run(of, **LOOKED_AT).close())
    assert {(batch["worker"], batch["pid"]) for batch in told} == {(None, None)}
    assert all(batch["made_s"] is not None for batch in told)


def test_whom_to_look_at_is_told_as_soon_as_it_is_known() -> None:
    of = script()
    train(of, 8)
    run = Run(of, **LOOKED_AT)
    told = run.settle()
    assert [note["pids"] for note in run.note("workers_begun")] == [PIDS]
    assert run.note("looked_at") == [{"pid": PROCESS["pid"], "descriptor": 9}]
    kinds = [message.kind for message in told if isinstance(message, Note)]
    assert kinds.index("workers_begun") < kinds.index("environment") < kinds.index("looked_at")


def test_nothing_is_told_of_a_process_that_does_not_show_its_waits() -> None:
    of = script()
    train(of, 8)
    run = Run(of).close()
    assert run.note("late") == run.note("workers_begun") == run.note("looked_at") == []
