"""`datasets`: the user's own data sets by name, which built-in jobs then train on as on vitprof's own."""

from dataclasses import replace
from typing import Annotated

import typer

from vitprof import formats, names
from vitprof.cli.common import terminal
from vitprof.cli.common.progress import progress
from vitprof.datasets.own import registry
from vitprof.recording import codec

app = typer.Typer(
    help="Your own data sets by name, for run and tournament and on the pages.",
    no_args_is_help=True,
)
SPEC_HELP = (
    "what it is: folder:PATH (a folder for each class), csv:FILE?path=..&label=.., parquet:FILE, hdf5:FILE?images=..&"
    "labels=.., lmdb:PATH, webdataset:PATH/{0000..0009}.tar, hf:PATH, or file.py:FUNCTION"
)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="name to give it", show_default=False)],
    spec: Annotated[str, typer.Argument(help=SPEC_HELP, show_default=False)],
    full: Annotated[
        bool, typer.Option("--full", help="open every sample also of a set of more than 1,000")
    ] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Look at a data set of yours, and give it a name. Again after it has changed."""
    from vitprof.datasets.own.bounded import look

    registry.ensure_name(name)
    with progress() as show:
        looked = look(name, spec, full=full, progress=lambda done, words: show(words, done))
    registry.add(looked.own)
    looked = replace(looked, own=looked.own.without_secrets())
    if as_json:
        terminal.print_json({"look": codec.to_plain(looked)})
        return
    options = f"--dataset {name}"
    if looked.unreadable:
        options += " --skip-unreadable"
    terminal.show(*looked.lines(), f"to train on it: {options}")


@app.command("list")
def list_sets(as_json: terminal.AsJson = False) -> None:
    """List your own data sets."""
    kept = registry.everything().values()
    every = [own.without_secrets() for own in kept if not own.removed]
    if as_json:
        terminal.print_json({"datasets": [codec.to_plain(own) for own in every]})
        return
    lines = []
    for own in every:
        samples = formats.count(own.n_train + own.n_test, "sample")
        lines.append(f"{own.name}: {own.spec}, {samples}")
    lines = [names.in_one_line(line) for line in lines]
    terminal.show(*lines or ["no data set of yours; datasets add NAME SPEC adds one"])


@app.command()
def remove(name: Annotated[str, typer.Argument(help="its name", show_default=False)]) -> None:
    """Forget a data set of yours, and delete what vitprof made of it. Your files and its runs stay."""
    registry.remove(name)
