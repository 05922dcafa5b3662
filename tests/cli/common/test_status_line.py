"""A line at the bottom of a terminal that another program writes to, looked at through a terminal emulator."""

import sys
from pathlib import Path

import pytest

from tests.emulator import Picture, Terminal
from vitprof.cli.common import status_line

BEGIN = f"""
import fcntl, importlib.util, os, signal, struct, sys, termios
spec = importlib.util.spec_from_file_location("status_line", {str(Path(status_line.__file__))!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
now = 0.0
line = module.StatusLine(2, lambda: now)

def show(text, after=0.5):
    global now
    now += after
    line.show(text)

def out(text):  # what the other program writes
    os.write(1, text.encode())

def mark(size=None):
    rows, columns = size or os.get_terminal_size(1)[::-1]
    if size:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    out(f"\\033]0;mark {{rows}} {{columns}}\\007")

def single_keys(on):
    modes = termios.tcgetattr(1)
    modes[3] = modes[3] & ~termios.ICANON if on else modes[3] | termios.ICANON
    termios.tcsetattr(1, termios.TCSANOW, modes)
"""
"""Written down, for importing what is around the module takes a second."""
TEN = [f"row {i}" for i in range(10)]


def played(
    source: str, *, rows: int = 8, columns: int = 40, env: dict[str, str] | None = None
) -> list[Picture]:
    terminal = Terminal([sys.executable, "-c", BEGIN + source], rows=rows, columns=columns, env=env)
    status, pictures = terminal.end()
    assert status == 0, terminal.said.decode()
    assert pictures[-1].margins is None
    return pictures


def filled(lines: list[str]) -> list[str]:
    """Without empty ones at the end."""
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines


def test_what_the_other_program_writes_is_all_there_and_nothing_is_left_of_the_line() -> None:
    during, after = played("""
out("before\\n")
for i in range(20):
    out(f"epoch {i} ")
    show(f"step {i}0")
    out(f"loss {i}." + "x" * 40 + "\\n")
    for j in range(3):
        out(f"\\r{j}/3")
        show(f"step {i}{j}")
    out("\\n")
out("last")
show("step 200")
mark()
line.hide()
out(" word\\n")
""")
    lines = ["before"]
    for i in range(20):
        text = f"epoch {i} loss {i}." + "x" * 40
        lines += [text[:40], text[40:], "2/3"]
    assert (during.lines, during.bottom) == ([*lines, "last"], " step 200")
    assert filled([*after.lines, after.bottom]) == [*lines, "last word"]


def test_a_full_row_goes_on_in_the_next_one() -> None:
    """A terminal's cursor waits behind the last column, and the line must not change that."""
    (after,) = played("""
show("step 1")
for i in range(40):
    out("a")
    show("step 2")
out("b")
line.hide()
""")
    assert filled(after.rows) == ["a" * 40, "b"]


def test_a_line_that_is_too_long_is_cut() -> None:
    during, _ = played('show("x" * 100)\nmark()\nline.hide()')
    assert during.rows == [""] * 7 + [" " + "x" * 38]


@pytest.mark.parametrize(
    ("size", "n_before"), [((12, 40), 3), ((6, 40), 10), ((8, 20), 10), ((5, 90), 3)]
)
def test_the_terminal_changes_its_size(size: tuple[int, int], n_before: int) -> None:
    during, after = played(f"""
for i in range({n_before}):
    out(f"row {{i}}\\n")
show("step 1")
mark({size})
show("step 2", after=0.25)
show("step 2")
for i in range({n_before}, 20):
    out(f"row {{i}}\\n")
show("step 3")
mark()
line.hide()
""")[1:]
    rows = [f"row {i}" for i in range(20)]
    assert [row for row in during.lines if row] == rows, (
        "no line is lost, and none of ours is among them"
    )
    assert (len(during.rows), during.bottom) == (size[0], " step 3")
    assert [row for row in [*after.lines, after.bottom] if row] == rows


def test_at_most_twice_a_second() -> None:
    source = "for i in range(40):\n    show(f'step {i}', after=0.125)\nline.hide()"
    terminal = Terminal([sys.executable, "-c", BEGIN + source])
    terminal.end()
    assert terminal.said.count(b"step ") == 10


def test_the_end_right_after_a_change_of_size() -> None:
    _, after = played('out("row\\n")\nshow("step 1")\nmark((12, 40))\nline.hide()')
    assert filled(after.rows) == ["row"]


def test_a_terminal_that_becomes_too_small_and_large_again() -> None:
    pictures = played("""
out("row\\n")
show("step 1")
mark((4, 40))
show("step 2")
mark()
mark((8, 40))
show("step 3")
mark()
line.hide()
""")
    shown = [["row", " step 1"], ["row"], ["row"], ["row", " step 3"], ["row"]]
    assert [[row for row in p.rows if row] for p in pictures] == shown


@pytest.mark.parametrize(("rows", "term"), [(4, "xterm"), (8, "dumb"), (8, "")])
def test_a_terminal_that_cannot_have_it(rows: int, term: str) -> None:
    source = 'with module.status_line() as show:\n    show("step 1")\n    out("row")'
    terminal = Terminal([sys.executable, "-c", BEGIN + source], rows=rows, env={"TERM": term})
    terminal.end()
    assert terminal.said == b"row"


def test_a_program_that_reads_single_keys_has_the_screen_for_itself() -> None:
    """An editor on the alternate screen that resets the region and leaves the cursor in the last row."""
    before, during, after, end = played("""
for i in range(10):
    out(f"row {i}\\n")
show("step 1")
mark()
out("\\033[?1049h")
single_keys(True)
out("\\033[r\\033[8;1Hits own last row")
show("step 2")
mark()
out("\\033[?1049l\\033[8;1H")
single_keys(False)
out("\\n".join(["", "its last words", "and more"]))
show("step 3")
out(" words\\nthe end\\n")
mark()
line.hide()
""")
    assert (before.lines, during.bottom) == ([*TEN, ""], "its own last row")
    assert [row for row in during.rows if "step" in row] == []
    assert (after.bottom, after.rows[4:7]) == (" step 3", ["and more words", "the end", ""])
    assert (end.rows[:-1], end.bottom) == (after.rows[:-1], "")


def test_a_program_that_resets_the_region_gets_it_back_later() -> None:
    """It may overwrite the line until then; the line overwrites nothing of it afterwards."""
    (after,) = played("""
show("step 1")
out("\\033[r\\033[2J\\033[8;1Hlast row\\n")
show("step 2", after=10)
for i in range(10):
    out(f"row {i}\\n")
    show("step 3")
line.hide()
""")
    assert [row for row in after.lines if row] == ["last row", *TEN]


@pytest.mark.parametrize(
    "ending", ["raise SystemExit(0)", "sys.excepthook = lambda *_: None\n    raise ValueError('x')"]
)
def test_however_the_block_ends(ending: str) -> None:
    source = f'with module.status_line() as show:\n    out("row")\n    show("step 1")\n    mark()\n    {ending}'
    terminal = Terminal([sys.executable, "-c", BEGIN + source])
    _, (during, after) = terminal.end()
    assert (during.bottom, filled(after.rows), after.margins) == (" step 1", ["row"], None)


def test_ctrl_z_gives_the_row_back_until_it_goes_on() -> None:
    """A process group can be stopped that a shell of the same session waits for: the parent here."""
    during, stopped, again, after = played("""
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if child:
    os.setpgid(child, child)
    os.tcsetpgrp(0, child)
    os.waitpid(child, os.WUNTRACED)
    mark()
    os.kill(child, signal.SIGCONT)
    os.waitpid(child, 0)
    os._exit(0)
while os.tcgetpgrp(0) != os.getpid():
    pass
with module.status_line() as show:
    out("row")
    show("step 1")
    mark()
    os.kill(os.getpid(), signal.SIGTSTP)
    module.REDRAW_EVERY_S = 0.0
    show("step 2")
    mark()
os._exit(0)
""")
    assert (during.bottom, stopped.bottom, again.bottom, after.bottom) == (
        " step 1",
        "",
        " step 2",
        "",
    )
    assert stopped.margins is None
    assert filled(after.rows) == ["row"]
