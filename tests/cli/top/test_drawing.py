"""The lines of `top`, at every width, with and without colours, in every encoding."""

import dataclasses
import io
import math
import re

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tests.cli.top.test_rows import row
from vitprof.cli.top import drawing
from vitprof.cli.top.drawing import ASCII, UNICODE
from vitprof.cli.top.rows import Snapshot, TopRow
from vitprof.cli.top.view import View

NOW_S = 1_800_000_000.0


def listed() -> tuple[TopRow, ...]:
    about = {"name": "python train.py --epochs 3", "user": "anna", "pid": 4711, "host": "node7"}
    return (
        row(12, idle=0.7, speed=81.3, moment_s=NOW_S - 60, **about),
        row(13, state="queued", queued=True, moment_s=NOW_S, **about),
        row(9, idle=0.1, speed=12_345.0, live=False, state="done", moment_s=NOW_S, **about),
    )


def snapshot(*rows: TopRow, **more: object) -> Snapshot:
    return Snapshot(rows=rows or listed(), at_s=NOW_S, **more)  # type: ignore[arg-type]


def console(width: int = 80, **more: object) -> Console:
    return Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=width, **more)  # type: ignore[arg-type]


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def test_a_row_says_what_runs_how_fast_how_idle_whose_and_since_when() -> None:
    headline, header, first, second, *rest = plain(drawing.table(snapshot(), 80, UNICODE))
    assert headline == "vitprof top  1 running, 1 queued, 1 ended within the last hour"
    assert header.split() == ["run", "steps/s", "idle", "by", "what", "since"]
    assert re.fullmatch(r" +12 +81\.3 +70%  █+▓?·+  waits for data 70%,.* +\d\d:\d\d", first), first
    assert second.strip() == "python train.py --epochs 3  training, anna, pid 4711 on node7"
    assert re.fullmatch("ended within the last hour +at", rest[2])
    assert re.search(r"9 +12,300 +10%", rest[3])


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    wide = dataclasses.replace(listed()[0], name="学習 " * 40, host="h" * 80)
    lines = drawing.table(snapshot(*listed(), wide), width, UNICODE)
    assert max(cell_len(line.plain) for line in lines) <= width
    (first,) = [line.plain for line in lines if "81.3" in line.plain and "70%" in line.plain][:1]
    if width >= 60:
        assert re.search(r"█+▓?·+", first), "idle is a bar"
        assert re.search(r"\d\d:\d\d$", first), "since when is not cut"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_all_columns_of_all_rows_stand_below_each_other(width: int) -> None:
    lines = plain(drawing.table(snapshot(), width, UNICODE))
    header = lines[1]
    for line in lines:
        if "81.3" in line or "12,300" in line:
            assert line.index("%") == header.index("idle") + 3
            assert cell_len(line) == cell_len(header)


def test_the_pieces_of_a_bar_differ_without_colours_and_in_ascii() -> None:
    first = plain(drawing.table(snapshot(), 80, ASCII))[2]
    assert re.search(r"  #+=?\.+  ", first), first
    for line in plain(drawing.table(snapshot(), 60, ASCII)):
        assert line.isascii(), line


def test_ascii_is_drawn_where_the_encoding_has_no_more() -> None:
    assert drawing.Glyphs.of(console()) == UNICODE
    poor = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert drawing.Glyphs.of(poor) == ASCII


def test_what_has_ended_is_dimmed_and_no_colour_is_set_for_text_or_background() -> None:
    """The terminal's own colours are legible on its own background, light or dark."""
    lines = drawing.table(snapshot(), 80, UNICODE)
    (ended,) = [line for line in lines if "12,300" in line.plain]
    (live,) = [line for line in lines if "81.3" in line.plain]
    assert ended.style.dim  # type: ignore[union-attr]
    assert not live.style.dim  # type: ignore[union-attr]
    coloured = {str(span.style) for line in lines for span in line.spans if span.style}
    assert coloured <= {*drawing.CAUSES, drawing.COMPUTES, "bold"}


def test_names_cannot_give_the_terminal_orders() -> None:
    harmful = dataclasses.replace(listed()[0], name="a\x1b[2J\nb", user="x\x1b]0;t\x07")
    text = "".join(plain(drawing.table(snapshot(harmful), 120, UNICODE)))
    assert not re.search(r"[\x00-\x1f]", text)


def filled(view: View, height: int, *, note: str = "", **more: object) -> tuple[list[str], View]:
    shown = snapshot(**more)
    lines, after = drawing.screen(shown, view, note, 80, height, console())
    assert len(lines) == min(height, len(lines))
    return plain(lines), after


def test_a_screen_is_filled_and_its_last_line_says_what_keys_do() -> None:
    lines, _ = filled(View(chosen=13, sort="idle"), 24)
    assert len(lines) == 24
    assert lines[-1] == "q quit   s sort: idle   enter answer"
    (chosen,) = [line for line in lines if line.startswith(">") and " 13 " in line]
    assert chosen


@pytest.mark.parametrize("chosen", [12, 13, 9])
def test_the_chosen_row_is_seen_on_a_small_terminal(chosen: int) -> None:
    lines, view = filled(View(chosen=chosen), 6)
    assert len(lines) == 6
    assert any(re.match(rf"> +{chosen} ", line) for line in lines)
    assert "up/down: " in lines[-1]
    again, same = filled(view, 6)
    assert (again, same) == (lines, view), "it does not creep"


@pytest.mark.parametrize("height", [1, 2, 3])
def test_a_terminal_of_few_rows_gets_no_more_lines_than_it_has(height: int) -> None:
    lines, _ = filled(View(chosen=12), height)
    assert len(lines) == height


def test_an_answer_is_wrapped_and_scrolled() -> None:
    words = "  or try:  " + "many words " * 30
    view = View(chosen=9, opened=9)
    lines, _ = filled(view, 24, opened=9, answer_lines=("run 9: a", "", words, "the end"))
    assert lines[2] == "run 9: a"
    assert lines[-1] == "q quit   esc back"
    text = [line for line in lines[4:-1] if line]
    assert text[-1] == "the end"
    assert " ".join(" ".join(text[:-1]).split()) == " ".join(words.split()), "no word is lost"
    assert all(line.startswith("    ") for line in text[1:-1])
    few, scrolled = filled(
        dataclasses.replace(view, offset=100), 5, opened=9, answer_lines=("a", words, "the end")
    )
    assert few[-2] == "the end"
    assert "above" in few[-1]
    assert scrolled.offset < 100


def test_an_answer_that_is_not_there_yet_says_so() -> None:
    lines, _ = filled(View(chosen=9, opened=9), 10)
    assert "reading run 9 ..." in lines
    assert "reading run 9 ..." in filled(View(opened=9), 10, opened=12, answer_lines=("a",))[0]


def test_what_is_wrong_stands_in_the_last_line() -> None:
    lines, _ = filled(View(chosen=9), 10, note="the run store x failed: database is locked")
    assert lines[-1] == "the run store x failed: database is locked"


def test_an_empty_list_says_what_to_type() -> None:
    empty = Snapshot(at_s=NOW_S)
    lines = plain(drawing.table(empty, 80, UNICODE))
    assert lines[0] == "vitprof top  0 running, 0 ended within the last hour"
    assert "watch -- python train.py watches your script" in lines[-1]


def test_without_a_figure_there_is_none() -> None:
    started = row(1, state="preparing", moment_s=math.nan)
    first, second = plain(drawing.table(snapshot(started), 80, UNICODE))[2:]
    assert first.strip() == "1"
    assert second.strip().startswith("a  preparing, ")
