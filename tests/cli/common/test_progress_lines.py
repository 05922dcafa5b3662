"""Lines of progress where there is no terminal: not too many, and none of a command that is quick."""

import sys

import pytest

from vitprof.cli.common.progress import progress
from vitprof.cli.common.progress_lines import LINE_EVERY_S, ProgressLines
from vitprof.mcp_server.children import Ended


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_every_half_minute_and_none_before() -> None:
    clock = Clock()
    lines: list[str] = []
    show = ProgressLines(lines.append, clock)
    for _ in range(10):  # 100 s, ten times a second as commands do it
        for _ in range(100):
            clock.now_s += 0.1
            show("run 3 of 9", 0.3)
    assert LINE_EVERY_S == 30
    assert lines == ["still running: run 3 of 9 (30%)"] * 3
    clock.now_s += LINE_EVERY_S
    show("stopping", None)
    assert lines[3:] == ["still running: stopping"]


def test_words_are_not_made_before_a_line_is_due() -> None:
    clock = Clock()
    lines: list[str] = []
    show = ProgressLines(lines.append, clock)
    assert not show.is_due
    clock.now_s += LINE_EVERY_S
    assert show.is_due
    show("on", 0.5)
    assert not show.is_due


def test_without_a_terminal_there_are_lines_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    monkeypatch.setattr("vitprof.cli.common.progress_lines.LINE_EVERY_S", 0.0)
    with progress() as show:
        show("storing samples", 0.25)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "vitprof: still running: storing samples (25%)\n")


def test_an_agent_is_not_told_of_progress_that_is_over() -> None:
    said = "vitprof: still running: 2 of 9 runs done (22%)\nvitprof: tournament 3 is paused\n"
    assert Ended(1, "", said).remarks == ["tournament 3 is paused"]
