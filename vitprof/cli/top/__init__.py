"""`top`: what runs now, in a terminal. For people who have no browser, as on SSH.

It is made with rich, which the core brings: on a login node nothing has to be installed for it.
"""

from typing import Annotated

import typer

from vitprof.cli.common import terminal

ONCE_HELP = (
    "print the table once, 80 columns wide, and end; so it does where it is not on a terminal"
)


def top(once: Annotated[bool, typer.Option("--once", help=ONCE_HELP)] = False) -> None:
    """Show the runs that go on, and those that ended within the last hour: steps/s, idle by cause, whose.

    Keys: q quits, s sorts, up and down choose a run, enter opens its answer, escape goes back. The
    store is only read.
    """
    # here: no other command needs them
    from vitprof.cli.top.drawing import Glyphs, table
    from vitprof.cli.top.reading import StoreReader
    from vitprof.cli.top.screen import can_show, show

    reader = StoreReader()
    try:
        first = reader.read()
        if not once and can_show():
            show(reader, first)
        else:
            glyphs = Glyphs.of(terminal.out)
            width = min(ONCE_WIDTH, terminal.out.width)
            terminal.show(*table(first, width, glyphs))
    finally:
        reader.close()


ONCE_WIDTH = 80
"""Columns of the table that is printed once, at most: it is to be pasted."""
