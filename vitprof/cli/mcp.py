"""`mcp`: tools for an agent, by the Model Context Protocol on standard input and output."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from vitprof.cli.common import terminal

READ_ONLY_HELP = "offer only tools that read"
ALLOW_RUN_HELP = "run commands without asking the user; what overwrites files is asked all the same"
SKILL_HELP = "print what an agent should know of the tools, and end"


def serve_tools(
    read_only: Annotated[bool, typer.Option("--read-only", help=READ_ONLY_HELP)] = False,
    allow_run: Annotated[bool, typer.Option("--allow-run", help=ALLOW_RUN_HELP)] = False,
    skill: Annotated[bool, typer.Option("--skill", help=SKILL_HELP)] = False,
) -> None:
    """Give an agent vitprof's tools, as an MCP server on standard input and output.

    A client starts it in the folder of the scripts, and names no files outside of that but those below
    VITPROF_DATA_ROOTS. Each command that is to be run is put to the user first. Needs the extra `mcp`.
    """
    if skill:
        from importlib import resources

        text = resources.files("vitprof.mcp_server").joinpath("SKILL.md")
        terminal.print_text(text.read_text(encoding="utf-8"))
        return
    terminal.check_rate()
    # slow to import, and may be missing
    from vitprof.cli.schema import PRINTED
    from vitprof.mcp_server.access import Access
    from vitprof.mcp_server.server import serve
    from vitprof.recording import codec

    if sys.stdin is not None and sys.stdin.isatty():
        terminal.remark(
            "this waits for an agent's client, which starts it by itself (Ctrl-C ends it)"
        )
    schemas = {name: partial(codec.schema, kind, name) for name, (kind, _) in PRINTED.items()}
    serve(Access(Path.cwd().resolve(), read_only=read_only, allow_run=allow_run), schemas)
