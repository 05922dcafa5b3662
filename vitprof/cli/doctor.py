"""`doctor`: checks whether this machine has what vitprof needs."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from vitprof.cli.common.terminal import EXIT_FAILED, VERDICT_COLOURS, AsJson, out, print_json


def doctor(as_json: AsJson = False) -> None:
    """Check versions, GPU, NVML, shared memory, disk and database, with a verdict for each.

    The exit status is 1 if a verdict is bad. `schema doctor` describes the object of --json.
    """
    from vitprof.jobs.preflight import examine

    checks = list(examine())
    if as_json:
        print_json({"checks": [vars(check) for check in checks]})
    else:
        table = Table("what", "found", "verdict")
        for check in checks:
            verdict = Text.assemble(
                (check.verdict, VERDICT_COLOURS[check.verdict]), f": {check.meaning}" if check.meaning else ""
            )
            table.add_row(check.name, check.found, verdict)
        out.print(table)
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(EXIT_FAILED)
