"""A file of events gives back what went into it, and any other file is one line."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from tests.watch.core.written import TRAIN, Script
from vitprof.watch.core.compute_parts import compute_parts
from vitprof.watch.core.loop import find_steps
from vitprof.watch.core.training import find_training
from vitprof.watch.event_log import EventLogError, EventLogWriter, read_event_log
from vitprof.watch.events import NAN, Description, Event, Kind


def written(script: Script, path: Path) -> None:
    with path.open("w") as file:
        writer = EventLogWriter(file)
        for description in script.log.descriptions.values():
            writer.described(description)
        for event in script.log.events:
            writer.event(event)


def test_a_log_that_was_written_gives_the_same_steps(tmp_path: Path) -> None:
    script = Script()
    script.train(5)
    written(script, tmp_path / "log")
    read = find_training(read_event_log(tmp_path / "log"))
    own = find_training(script.log)
    assert read is not None
    assert own is not None
    waits = [step.wait_s for step in find_steps(read).steps]
    assert waits == pytest.approx([step.wait_s for step in find_steps(own).steps], abs=1e-6)


def test_a_log_that_was_written_gives_the_same_parts_of_compute(tmp_path: Path) -> None:
    """The end of a backward pass is known by its beginning, though both are rounded."""
    script = Script(wait_s=1 / 3)
    for _ in range(5):
        script.fetch(TRAIN)
        script.passes(1 / 7)
        script.differentiates(1 / 11)
        script.updates(1 / 13)
    written(script, tmp_path / "log")
    read = find_training(read_event_log(tmp_path / "log"))
    assert read is not None
    found = [compute_parts(step) for step in find_steps(read).steps]
    assert np.array(found) == pytest.approx(np.array(5 * [[1 / 7, 1 / 11, 1 / 13]]), abs=3e-6)


def test_times_begin_with_the_first_event_and_no_loss_and_no_file_is_in_it() -> None:
    file = io.StringIO()
    writer = EventLogWriter(file)
    facts = {"dataset": "Images", "made_where": "secret/train.py:3"}
    writer.described(Description(4, "loader", facts))
    writer.event(Event(Kind.REQUESTED, 1000.5, 777777, 4, (NAN, 1.0, NAN)))
    writer.event(Event(Kind.BACKWARD, 1000.75, 777777, 0, (0.125, 2.0, NAN)))
    _, described, requested, backward = map(json.loads, file.getvalue().splitlines())
    assert described == ["described", 4, "loader", {"dataset": "Images"}]
    assert requested == ["requested", 0, 1, 4, None, 1]
    assert backward == ["backward", 0.25, 1, 0, None, 2]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no event log: vitprof watch --events FILE -- COMMAND writes one"),
        (b"import torch\n", "is no event log"),
        (b"\xff\xfe\x00", "cannot be read: it is no text"),
        (b'{"vitprof_events": 99}\n', "has version 99 of the format, and this vitprof reads 1"),
        (b'{"vitprof_events": 1}\n["danced", 0, 1, 2]\n', "line 2 is no event"),
        (b'{"vitprof_events": 1}\n["stepped", 0, 1]\n', "line 2 is no event"),
        (b'{"vitprof_events": 1}\n["left", 0, 1, 2]\n{"half\n', "line 3 is no event"),
    ],
)
def test_a_file_that_is_no_log_is_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(EventLogError, match=said) as caught:
        read_event_log(path)
    assert "\n" not in str(caught.value)


def test_a_line_that_a_killed_writer_has_begun_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"vitprof_events": 1}\n["left", 0, 1, 2]\n["stepped", 0.1')
    log = read_event_log(path)
    assert [event.kind for event in log.events] == [Kind.LEFT]
    assert log.is_cut


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EventLogError, match="nothing cannot be read: No such file"):
        read_event_log(tmp_path / "nothing")
