"""`demo`: opens the dashboard on recorded runs, which have a home of their own."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from vitprof.cli.dashboard import NO_BROWSER_HELP, PORT_HELP, main_script, need_streamlit, port_option, serve
from vitprof.demo import make_home


def demo(
    port: Annotated[int | None, port_option(PORT_HELP)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help=NO_BROWSER_HELP)] = False,
) -> None:
    """Open the dashboard on example runs and a tournament, recorded beforehand. Your own runs are left alone."""
    need_streamlit()
    script = main_script()  # before the home changes: the files that browsers load are shared with the user's own home
    place, replaced = make_home()
    os.environ["VITPROF_HOME"] = str(place)
    os.environ.pop("VITPROF_DB", None)
    lines = [f"This is the demonstration. What you run in it is kept in {place}."]
    if replaced:
        lines.append("The demonstration of another version of vitprof was replaced, with all runs made in it.")
    serve(script, port, no_browser=no_browser, lines=lines)
