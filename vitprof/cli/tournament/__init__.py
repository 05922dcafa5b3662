"""`tournament`: runs many settings against each other, of vitprof's own jobs or of a user's own script."""

import typer

from vitprof.cli.tournament.jobs import run_jobs
from vitprof.cli.tournament.resume import resume
from vitprof.cli.tournament.script import script

app = typer.Typer()
app.callback(invoke_without_command=True)(run_jobs)
app.command()(script)
app.command()(resume)
