"""`top`: on a terminal, with keys and signals, and printed once where there is none."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli.top.recorded import STARVED, Running, running
from tests.command_line import Call, one_line, succeeds
from tests.emulator import Terminal
from vitprof.cli.top import ONCE_WIDTH
from vitprof.config import RunConfig
from vitprof.store import RunStore

TOP = [sys.executable, "-m", "vitprof", "top"]
KEYS = "q quit   s sort: newest   enter answer"
LEFT_SCREEN = b"\x1b[?1049l"
SHOWN_CURSOR = b"\x1b[?25h"
LIMIT_S = 60.0


@pytest.fixture
def live(store: RunStore, recorded: dict[str, int]) -> Running:
    made = running(
        store, recorded[STARVED], t_origin_s=time.monotonic(), owner_host=socket.gethostname()
    )
    made.go_on(60)
    return made


class Top(Terminal):
    """`top` on a terminal of its own."""

    def see(self, seen: Callable[[list[str]], object]) -> list[str]:
        """Waits until the rows that a person sees are so; returns them."""
        self.read(lambda _said: seen(self.shown()))
        rows = self.shown()
        assert seen(rows), "\n".join(rows)
        return rows

    def see_words(self, words: str) -> list[str]:
        return self.see(lambda rows: words in "\n".join(rows))

    def chosen(self) -> list[int]:
        """Returns the runs whose rows are marked: one, but while a picture comes in."""
        marked = (re.match(r"> +(\d+) ", row) for row in self.shown())
        return [int(found[1]) for found in marked if found]

    def go_down(self) -> None:
        """Chooses the next row, and waits until it is marked."""
        before = self.chosen()
        self.press(b"\x1b[B")
        self.see(lambda _rows: len(self.chosen()) == 1 and self.chosen() != before)

    def leave(self, key: bytes = b"q") -> int:
        """Ends it, and looks whether the terminal is as it was; returns the exit status."""
        self.press(key)
        return self.left()

    def left(self) -> int:
        self.read()
        assert LEFT_SCREEN in self.said
        assert SHOWN_CURSOR in self.said.rpartition(b"\x1b[?25l")[2]
        assert self.reads_lines()
        status, _ = self.end()
        return status


@pytest.fixture
def top(live: Running) -> Iterator[Top]:
    started = Top(TOP, rows=24, columns=80)
    started.see_words(KEYS)
    yield started
    started.process.kill()
    started.process.wait()


def idle_by_runs(call: Call, run_id: int) -> str:
    """Returns the idle share that `runs` has of a run."""
    (line,) = re.findall(rf"^{run_id} .*$", succeeds(call, "runs"), re.MULTILINE)
    share = re.search(r"[\d.]+%", line)
    assert share is not None
    return share[0]


def test_keys_sort_open_the_answer_and_end_it(
    top: Top, live: Running, recorded: dict[str, int], call: Call
) -> None:
    rows = top.shown()
    starved = recorded[STARVED]
    assert re.match(rf"> +{live.id} +[\d.]+ +\d+%  █+[▓▒░]*·+  waits for data \d+%", rows[2]), rows
    assert rows[3].split("  ")[-1].startswith("training, simulated, anna, pid 4711")
    top.press(b"s")
    top.see_words("s sort: idle")
    while top.chosen() != [starved]:
        top.go_down()
    top.press(b"\r")
    rows = top.see_words("Fix?")
    assert f"run {starved}: {STARVED} (simulated device)" in rows
    said = [line.strip() for line in succeeds(call, "runs", str(starved)).splitlines()]
    by_what, gain = (
        next(line for line in said if line.startswith(question))
        for question in ("By what?", "Gain?")
    )
    assert by_what in [row.strip() for row in rows]
    assert gain in [row.strip() for row in rows]
    top.press(b"\x1b")
    top.see_words("s sort: idle")
    assert top.leave() == 0


def test_new_steps_come_in_and_the_size_changes(top: Top, live: Running, store: RunStore) -> None:
    live.go_on(40)
    # what is said of them in full is in the answer
    top.press(b"\n")
    top.see(lambda rows: re.search(r"idle for data, 9\d steps", "\n".join(rows)))
    top.press(b"\x7f")
    top.see_words(KEYS)
    store.create_run(RunConfig())
    top.see_words("1 running, 1 queued")
    top.resize(12, 60)
    rows = top.see(lambda rows: rows[-1].startswith("q quit") and "vitprof top" in rows[0])
    assert max(map(len, rows)) <= 60
    assert any(re.search(r"█+[▓▒░]*·+", row) for row in rows)
    assert top.leave() == 0


def test_a_signal_ends_it_and_the_terminal_is_as_before(top: Top) -> None:
    top.process.send_signal(signal.SIGTERM)
    assert top.left() == 0


def test_a_store_that_vanishes_is_one_line(top: Top, store: RunStore) -> None:
    assert store.file is not None
    store.file.unlink()
    assert top.left() == 1
    after = top.said.rpartition(LEFT_SCREEN)[2].decode()
    assert re.search(r"vitprof: the file of the run store, .*, was deleted", after), after
    assert "Traceback" not in after


SUSPENDED = f"""
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if not child:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, {TOP!r})
os.waitpid(child, os.WUNTRACED)
os.tcsetpgrp(0, os.getpid())
os.write(1, b"suspended\\n")
os.read(0, 10)
os.tcsetpgrp(0, child)
os.kill(child, signal.SIGCONT)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A shell, as far as it matters: a process group can be suspended that a parent of the session waits for."""


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(live: Running) -> None:
    top = Top([sys.executable, "-c", SUSPENDED], rows=24, columns=80)
    try:
        top.see_words(KEYS)
        top.press(b"\x1a")
        top.see_words("suspended")
        assert top.reads_lines()
        assert top.said.rstrip().endswith(b"suspended")
        assert LEFT_SCREEN in top.said
        top.press(b"\n")
        top.see_words(KEYS)
        assert top.leave() == 0
    finally:
        top.process.kill()
        top.process.wait()


def test_ctrl_c_ends_it_and_there_are_no_colours_where_the_user_wants_none(live: Running) -> None:
    top = Top(TOP, rows=24, columns=80, env={"NO_COLOR": "1"})
    try:
        top.see_words(KEYS)
        assert top.leave(b"\x03") == 0
        colours = re.findall(rb"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7])(?:;\d+)*m", top.said)
        assert not colours
    finally:
        top.process.kill()
        top.process.wait()


@pytest.mark.parametrize("options", [[], ["--once"]])
def test_without_a_terminal_it_is_printed_once(
    call: Call, live: Running, recorded: dict[str, int], options: list[str]
) -> None:
    out = succeeds(call, "top", *options)
    lines = out.splitlines()
    assert lines[0].startswith("vitprof top  1 running, ")
    assert max(map(len, lines)) <= ONCE_WIDTH
    assert "\x1b" not in out
    assert "q quit" not in out
    (of_live,) = [line for line in lines if line.split()[:1] == [str(live.id)]]
    assert "waits for data" in of_live
    assert any("python train.py" in line and "anna, pid 4711 on node7" in line for line in lines)
    starved = recorded[STARVED]
    (of_ended,) = [line for line in lines if line.split()[:1] == [str(starved)]]
    assert of_ended.split()[2] == idle_by_runs(call, starved)


def test_an_empty_store_says_what_to_type(call: Call, vitprof_home: Path) -> None:
    out = succeeds(call, "top")
    assert "no runs; python -m vitprof watch -- python train.py watches your script" in out
    assert not vitprof_home.exists(), "no store is made for it"


def test_a_store_that_cannot_be_used_is_one_line(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_DB", "nothing")
    assert "is not an SQLAlchemy URL" in one_line(call, "top", status=1)


def test_a_script_that_is_watched_is_seen_while_it_trains(call: Call) -> None:
    telling = [sys.executable, "-m", "tests.cli.telling", "1000"]
    watching = subprocess.Popen(
        [sys.executable, "-m", "vitprof", "watch", "--quiet", "--", *telling],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until_s = time.monotonic() + LIMIT_S
    out = ""
    try:
        while (
            not ("waits for data 40%" in out and "training, " in out) and time.monotonic() < until_s
        ):
            out = succeeds(call, "top")
    finally:
        watching.send_signal(signal.SIGINT)
        watching.wait(LIMIT_S)
    assert "1 running" in out
    (line,) = [line for line in out.splitlines() if "waits for data 40%" in line]
    assert line.split()[1:3] == ["100", "40%"]
    assert re.search(r"training, \S+, pid \d+ on ", out)
    ended_lines = succeeds(call, "top")
    assert "0 running, 1 ended within the last hour" in ended_lines
    assert "40%" in ended_lines
