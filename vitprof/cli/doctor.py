"""`doctor`: whether this machine has what vitprof needs."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from vitprof.cli.common.terminal import EXIT_FAILED, VERDICT_COLOURS, out


def doctor() -> None:
    """Check versions, GPU, NVML, shared memory, disk and database, with a verdict for each."""
    from vitprof.jobs.preflight import examine

    table = Table("what", "found", "verdict")
    checks = list(examine())
    for check in checks:
        verdict = Text.assemble(
            (check.verdict, VERDICT_COLOURS[check.verdict]), f": {check.meaning}" if check.meaning else ""
        )
        table.add_row(check.what, check.found, verdict)
    out.print(table)
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(EXIT_FAILED)
