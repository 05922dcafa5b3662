"""The rows of `top` as lines of text with colours, for a width and a height. No terminal is asked.

Colours are those of the terminal's own palette, so they fit a light and a dark background. No figure
rests on them: the pieces of a bar differ by their character, too, and stand in the order of the words
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from vitprof.analysis.verdict.answer import COMPUTE
from vitprof.cli.top import rows as words
from vitprof.cli.top.rows import Snapshot, TopRow
from vitprof.cli.top.view import View
from vitprof.names import in_one_line
from vitprof.program import program

NARROWEST = 40
"""Columns below which lines are cut at the right."""
MARKED = 2
"""Columns of the mark of the chosen row."""
RUN = 5
"""Columns of a run's number."""
SPEED = 8
"""Columns of the steps in a second: "12,300"."""
IDLE = 5
"""Columns of the idle share: "99.6%"."""
SINCE = 6
"""Columns of a moment: "29 Nov"."""
APART = 2
"""Columns between two others."""
LEAST_BAR = 10
MOST_BAR = 24
NAME_FRAC = 0.3
"""Share of the columns that a run's name has at least, where all of its second line is too long."""
BAR_FRAC = 0.4
"""Share of the columns for the causes that the bar takes; their words have the rest."""
CAUSES = ("red", "magenta", "yellow", "blue")
"""Colours of the pieces of a bar that are waited for, the longest first."""
COMPUTES = "green"


@dataclass(frozen=True)
class Glyphs:
    """The characters that lines are drawn with."""

    causes: str
    """Those of the pieces of a bar that are waited for, the longest first."""
    computes: str
    """That of the piece in which the device computes."""
    cut: str
    """Stands at the end of what is cut."""

    @classmethod
    def of(cls, console: Console) -> Glyphs:
        """Returns those that the console's encoding has."""
        return ASCII if console.options.ascii_only else UNICODE


UNICODE = Glyphs(causes="█▓▒░", computes="·", cut="…")
ASCII = Glyphs(causes="#=+-", computes=".", cut="~")


@dataclass(frozen=True)
class Columns:
    """The widths of a table's columns, as far as they depend on that of the terminal."""

    whole: int
    bar: int
    causes: int

    @classmethod
    def of(cls, width: int) -> Columns:
        whole = max(width, NARROWEST)
        fixed = MARKED + RUN + SPEED + IDLE + SINCE + 5 * APART
        remaining = whole - fixed
        bar = max(LEAST_BAR, min(MOST_BAR, round(BAR_FRAC * remaining)))
        return cls(whole, bar, max(0, remaining - bar))


@dataclass(frozen=True)
class Line:
    """A line that is drawn where it is seen: of a hundred runs few are."""

    draw: Callable[[], Text]
    run_id: int | None = None
    """The run that it is of; None for none."""

    def is_of(self, run_id: int | None) -> bool:
        return run_id is not None and self.run_id == run_id


def table(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Text]:
    """Returns the whole list, each line at most `width` wide, as it is printed once."""
    drawing = Drawing(snapshot, View(), Columns.of(width), glyphs)
    lines = [*drawing.head(), *(line.draw() for line in drawing.body())]
    return [_fitted(line, width, glyphs) for line in lines]


def screen(
    snapshot: Snapshot, view: View, note: str, width: int, height: int, console: Console
) -> tuple[list[Text], View]:
    """Returns the lines that fill a terminal, and the view as it is then scrolled.

    `note`: what is wrong, in one line; "" where nothing is. `console` wraps words.
    """
    glyphs = Glyphs.of(console)
    drawing = Drawing(snapshot, view, Columns.of(width), glyphs)
    if view.opened is None:
        above = drawing.head()
        body = drawing.body()
    else:
        above = [drawing.headline()]
        answer = _answer(snapshot, view.opened, width, console)
        body = [Line(partial(Text.copy, line)) for line in answer]
    room = max(1, height - len(above) - 1)
    chosen = [place for place, line in enumerate(body) if line.is_of(view.chosen)]
    view = view.scrolled(chosen, len(body), room)
    shown = [line.draw() for line in body[view.offset : view.offset + room]]
    below = len(body) - view.offset - len(shown)
    shown += [Text()] * (room - len(shown))
    footer = _footer(view, note, view.offset, below)
    lines = [*above, *shown, footer]
    return [_fitted(line, width, glyphs) for line in lines[-height:]], view


@dataclass(frozen=True)
class Drawing:
    """Draws a list of runs."""

    snapshot: Snapshot
    view: View
    columns: Columns
    glyphs: Glyphs

    def head(self) -> list[Text]:
        """Returns the first line and the names of the columns; these only where a run is listed."""
        return [self.headline(), self._header()] if self.snapshot.rows else [self.headline()]

    def headline(self) -> Text:
        return Text.assemble(("vitprof top", "bold"), f"  {words.headline(self.snapshot.rows)}")

    def body(self) -> list[Line]:
        """Returns the lines below, two for each run."""
        listed = words.in_order(self.snapshot.rows, self.view.sort)
        if not listed:
            line = words.what_to_type(program(), has_older=self.snapshot.has_older)
            return [Line(Text), Line(partial(Text, line))]
        body = []
        was_live = True
        for row in listed:
            if was_live and not row.live:
                body.append(Line(self._section))
            was_live = row.live
            body.append(Line(partial(self._figures, row), row.run_id))
            body.append(Line(partial(self._about, row), row.run_id))
        return body

    def _header(self) -> Text:
        columns = self.columns
        cells = (
            " " * MARKED + "run".rjust(RUN),
            "steps/s".rjust(SPEED),
            "idle".rjust(IDLE),
            _padded("by what", columns.bar + APART + columns.causes, self.glyphs),
            "since".rjust(SINCE),
        )
        return Text((" " * APART).join(cells), style="underline")

    def _section(self) -> Text:
        """Returns the line above the runs that have ended, whose moment is that of their end."""
        line = _padded("ended within the last hour", self.columns.whole - SINCE, self.glyphs)
        return Text(line + "at".rjust(SINCE), style="dim underline")

    def _figures(self, row: TopRow) -> Text:
        """Returns the first line of a run: how fast, how idle, for what, since when."""
        mark = ">" if row.run_id == self.view.chosen else ""
        apart = " " * APART
        causes = in_one_line(words.causes(row))
        line = Text(style=self._style(row))
        line.append(mark.ljust(MARKED) + str(row.run_id).rjust(RUN) + apart)
        line.append(words.speed_in_words(row).rjust(SPEED) + apart)
        line.append(words.idle_in_words(row).rjust(IDLE) + apart)
        line.append_text(_bar(row, self.columns.bar, self.glyphs))
        line.append(apart + _padded(causes, self.columns.causes, self.glyphs) + apart)
        line.append(words.when(row.moment_s, self.snapshot.at_s).rjust(SINCE))
        return line

    def _about(self, row: TopRow) -> Text:
        """Returns the second line of a run: what it is, what it does, and whose it is."""
        indent = MARKED + RUN + APART
        about = in_one_line(row.about)
        # a command is known by how it begins; who and where are of no use cut
        room = self.columns.whole - indent - APART
        room = max(room - cell_len(about), round(NAME_FRAC * room))
        name = _cut(in_one_line(row.name), room, self.glyphs)
        return Text(" " * indent + name + " " * APART + about, style=self._style(row))

    def _style(self, row: TopRow) -> Style:
        is_chosen = row.run_id == self.view.chosen
        return Style(bold=is_chosen or None, dim=not row.live or None)


def _bar(row: TopRow, width: int, glyphs: Glyphs) -> Text:
    drawn = Text()
    place = 0
    for part, cells in words.bar(row, width):
        if part.name == COMPUTE:
            drawn.append(glyphs.computes * cells, COMPUTES)
            continue
        at = min(place, len(CAUSES) - 1)
        drawn.append(glyphs.causes[at] * cells, CAUSES[at])
        place += 1
    drawn.append(" " * (width - drawn.cell_len))
    return drawn


def _answer(snapshot: Snapshot, opened: int, width: int, console: Console) -> list[Text]:
    """Returns the answer on the run that is opened, wrapped."""
    if snapshot.opened != opened:
        return [Text(), Text(f"reading run {opened} ...")]
    lines = [Text()]
    for line in snapshot.answer_lines:
        # continued lines stand below the words, as in a printed answer
        begun = Text(in_one_line(line)).wrap(console, max(width, NARROWEST))
        lines += begun[:1]
        rest = Text(" ").join(begun[1:])
        indent = " " * CONTINUED
        for continued in rest.wrap(console, max(width, NARROWEST) - CONTINUED):
            if continued.plain:
                lines.append(Text(indent + continued.plain))
    return lines


CONTINUED = 4
"""Columns by which a line that goes on is indented."""


def _footer(view: View, note: str, above: int, below: int) -> Text:
    keys = f"q quit   s sort: {view.sort}   enter answer"
    if view.opened is not None:
        keys = "q quit   esc back"
    hidden = words.hidden_in_words(above, below)
    if hidden:
        keys += f"   up/down: {hidden}"
    footer = Text(keys, style="reverse")
    if note:
        footer = Text(in_one_line(note), style="bold reverse")
    return footer


def _fitted(line: Text, width: int, glyphs: Glyphs) -> Text:
    """Returns a line without what is beyond `width`, and without spaces at its end."""
    line = line.copy()
    line.rstrip()
    if line.cell_len > width:
        line.truncate(width - cell_len(glyphs.cut))
        line.append(glyphs.cut)
    return line


def _cut(text: str, width: int, glyphs: Glyphs) -> str:
    """Returns text of at most `width` columns."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - cell_len(glyphs.cut))).rstrip() + glyphs.cut


def _padded(text: str, width: int, glyphs: Glyphs) -> str:
    """Returns text of exactly `width` columns; "" for none."""
    if width <= 0:
        return ""
    return set_cell_size(_cut(text, width, glyphs), width)


def joined(lines: Sequence[Text]) -> Text:
    """Returns lines as one text that is not wrapped."""
    whole = Text("\n", no_wrap=True, overflow="crop", end="").join(lines)
    whole.no_wrap = True
    whole.overflow = "crop"
    return whole
