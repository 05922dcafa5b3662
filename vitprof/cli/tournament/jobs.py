"""`tournament`: runs strategies and settings of vitprof's own jobs against each other."""

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from vitprof.cli.common import options as common
from vitprof.cli.common import terminal
from vitprof.cli.common.fitted import find_fitting
from vitprof.cli.tournament import options
from vitprof.cli.tournament.running import ResultOutput, Running, run_stored
from vitprof.config import BUDGETS, CHOICES, GROUPS, PARTS, RunConfig, bounds
from vitprof.config.strategies import STRATEGIES
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.config.varied import OF_A_JOB, Value, read_varied
from vitprof.errors import ConfigError
from vitprof.experiments.tournament import planning
from vitprof.export import tournament
from vitprof.program import program
from vitprof.store import tournaments

TRIAL_S = 5.0
"""Seconds of training in each trial if no budget is given."""
OF_EACH_TRIAL = (*PARTS, "strategy", "batch_size", "workers", "page_cache", "replay")
"""Fields of `RunConfig` that are no options here, because each trial has its own."""
SHARED_HELP = {
    "epochs": "budget of each trial: epochs",
    "steps": "budget of each trial: training steps",
    "seconds": f"budget of each trial: seconds of training; {TRIAL_S:g} if no budget is given",
    "evaluate": "evaluate on the test set in each trial",
    "name": "name of the tournament",
}
STRATEGIES_HELP = "strategies, separated by commas, or all: every one that can run here"
BATCH_SIZES_HELP = f"batch sizes, as 64,512 or 64..1024:x2; {RunConfig.batch_size} if not given"
WORKERS_HELP = "numbers of workers, as 0,2,4 or 0..8; each strategy's own if not given"
PAGE_CACHES_HELP = (
    f"states of the page cache, separated by commas: {', '.join(CHOICES['page_cache'])}"
)
BASELINE_HELP = "key of the setting to compare with, such as memory/b64/w-/as-is"
LIST_HELP = "list the tournaments in the store"


def _text(name: str, help_text: str) -> inspect.Parameter:
    return common.parameter(name, str, "", help_text, "Tournament")


def _shared() -> list[inspect.Parameter]:
    """Returns the options for what all trials share: fields of `RunConfig`."""
    shared = []
    for panel, names in GROUPS.items():
        for name in names:
            if name in OF_EACH_TRIAL:
                continue
            option = common.option(name, panel, help_text=SHARED_HELP.get(name, ""))
            if name == "evaluate":
                # it would take longer than a trial
                option = option.replace(default=False)
            shared.append(option)
    return shared


@common.takes(
    common.CONTEXT,
    _text("strategies", STRATEGIES_HELP),
    _text("batch_sizes", BATCH_SIZES_HELP),
    _text("workers", WORKERS_HELP),
    common.keyword("vary", options.VaryOfAJob),
    _text("page_caches", PAGE_CACHES_HELP),
    common.keyword("repeats", options.Repeats, 3),
    common.keyword("until_decided", options.UntilDecided, True),
    _text("baseline", BASELINE_HELP),
    common.keyword("early_stop", options.EarlyStop, True),
    common.keyword("time", options.Time),
    common.keyword("anyway", options.Anyway, False),
    common.keyword("on", options.On, ""),
    common.keyword("nodes", options.Nodes),
    common.keyword("slurm", options.Slurm),
    common.parameter("show_list", bool, False, LIST_HELP, "Work", flag="--list"),
    common.keyword("csv", options.Csv),
    common.keyword("as_json", options.AsJson, False),
    common.keyword("markdown", options.Markdown, False),
    *_shared(),
)
def run_jobs(
    ctx: typer.Context,
    *,
    strategies: str,
    batch_sizes: str,
    workers: str,
    vary: list[str] | None,
    page_caches: str,
    repeats: int,
    until_decided: bool,
    baseline: str,
    early_stop: bool,
    time: float | None,
    anyway: bool,
    on: str,
    nodes: int | None,
    slurm: list[str] | None,
    show_list: bool,
    csv: Path | None,
    as_json: bool,
    markdown: bool,
    **settings: Any,
) -> None:
    """Run settings against each other in rounds, and show which one to use.

    Ctrl-C pauses; `tournament resume ID` continues, also after a restart of the machine. `tournament script` does the
    same with your own script.
    """
    if ctx.invoked_subcommand is not None:
        terminal.refuse_given(ctx, ctx.params, f"give it after {ctx.invoked_subcommand}")
        return
    if show_list:
        others = [name for name in ctx.params if name not in ("show_list", "as_json")]
        terminal.refuse_given(ctx, others, "it does nothing with --list; leave one of the two out")
        _list(as_json)
        return
    terminal.check_output(csv, "csv")
    options.check_format(as_json=as_json, markdown=markdown)
    cluster = options.read_cluster(on, nodes, slurm)
    if cluster is not None:
        options.refuse_on_cluster(ctx)
    base = _base(settings)
    varied = _varied(vary or (), batch_sizes=batch_sizes, workers=workers)
    named = list(varied)
    if terminal.is_given(ctx, "model"):
        named.append("model")
    fitted = find_fitting(settings, named=named)
    base = dataclasses.replace(base, **fitted.settings)
    of_their_own: dict[str, Any] = {
        "batch_sizes": varied.pop("batch_size", (base.batch_size,)),
        "workers": varied.pop("workers", None),
    }
    spec = TournamentSpec(
        base=base,
        strategies=_strategies(strategies, base),
        page_caches=common.texts("page_caches", page_caches or "as-is"),
        vary=tuple(varied.items()),
        repeats=repeats,
        until_decided=until_decided,
        seconds=time,
        baseline=baseline,
        early_stop=early_stop,
        **of_their_own,
    )
    with terminal.open_store() as store:
        kept = terminal.name_to_keep(settings["name"])
        tournament_id = planning.create_tournament(store, spec, kept)
        fitted.show()
        how = Running(anyway=anyway, cluster=cluster)
        run_stored(store, tournament_id, how, ResultOutput(csv, as_json=as_json, markdown=markdown))


def _base(settings: dict[str, Any]) -> RunConfig:
    """Returns what all trials share."""
    shared = {**settings, "name": ""}
    if all(settings[budget] is None for budget in BUDGETS):
        shared["seconds"] = TRIAL_S
    base = RunConfig(**shared)
    common.check_budget(base)
    return base


def _strategies(text: str, base: RunConfig) -> tuple[str, ...]:
    if not text:
        some = f"give some, separated by commas, or all: {', '.join(STRATEGIES)}"
        raise ConfigError("strategies", "", f"{some}; or your own script after --")
    if text == "all":
        return common.strategies_that_run(base)
    return common.texts("strategies", text)


def _varied(vary: Sequence[str], *, batch_sizes: str, workers: str) -> dict[str, tuple[Value, ...]]:
    """Returns the settings that are varied, with their values.

    `--batch-sizes 64,512` is short for `--vary batch_size=64,512`, and `--workers` likewise.
    """
    varied: dict[str, tuple[Value, ...]] = {}
    for text in vary:
        name, values = read_varied(text, OF_A_JOB)
        if name in varied:
            raise ConfigError("vary", text, f"give {name} once, with all its values")
        varied[name] = values
    short = (("batch_sizes", "batch_size", batch_sizes), ("workers", "workers", workers))
    for option, name, text in short:
        if not text:
            continue
        if name in varied:
            raise ConfigError(option, text, f"--vary {name}= is given too; leave one out")
        varied[name] = common.numbers(option, text, bounds.TOURNAMENT_BOUNDS[option])
    return varied


def _list(as_json: bool) -> None:
    with terminal.open_store() as store:
        listed = tournaments.list_tournaments(store)
    if as_json:
        terminal.print_json({"tournaments": [tournament.listed_object(t) for t in listed]})
    elif not listed:
        terminal.out.print(
            f"no tournaments yet; start one with {program()} tournament --strategies memory,workers"
        )
    else:
        cells = []
        for each in listed:
            name = each.name
            if each.spec.base.simulated:
                name += " (simulated)"
            cells.append((str(each.id), name, each.status, each.created_utc))
        terminal.show_table(("tournament", "name", "status", "made"), cells)
