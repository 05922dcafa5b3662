"""`prune` erases runs for good: those that were deleted, and with `--keep` all that are old."""

import re
from typing import Annotated

import typer

from vitprof import formats
from vitprof.cli.common import terminal
from vitprof.cli.common.progress import progress
from vitprof.config.bounds import PRUNED_DAYS
from vitprof.errors import ConfigError
from vitprof.store import retention
from vitprof.store.database import now_utc
from vitprof.store.run_store import KEPT_DAYS

DELETED_HELP = "erase what was deleted longer ago than that"
KEEP_HELP = "also erase runs and tournaments made longer ago, such as 90d or 12w, but for those with a tag or note"
ALL_HELP = "with --keep: erase also old runs that have a tag or a note"
DRY_HELP = "with --keep: say what would be erased, and erase nothing"
DAYS = {"d": 1, "w": 7}


def prune(
    keep_days: Annotated[float, terminal.number("keep_days", PRUNED_DAYS, DELETED_HELP)] = float(
        KEPT_DAYS
    ),
    keep: Annotated[str, typer.Option(help=KEEP_HELP, show_default=False)] = "",
    everything: Annotated[bool, typer.Option("--all", help=ALL_HELP)] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_HELP)] = False,
) -> None:
    """Erase deleted runs, and old ones with --keep, for good."""
    days = _days(keep) if keep else None
    for name, is_set in (("all", everything), ("dry_run", dry_run)):
        if is_set and days is None:
            raise ConfigError(name, is_set, "it needs --keep")
    with terminal.open_store(settle=True) as store:
        if days is None:
            terminal.show(f"{formats.count(store.prune(keep_days), 'run')} erased")
            return
        what = retention.expired(store, days, marked_too=everything)
        size = formats.size(what.size_bytes)
        before = now_utc(days)
        if dry_run:
            counted = _counted(len(what.runs), len(what.tournaments))
            terminal.show(f"would erase {counted}: {size} made before {before}")
            return
        with progress() as show:
            erased = retention.erase(store, what, lambda n: show("erasing", n / len(what.runs)))
        store.prune(keep_days)
        terminal.show(f"{_counted(*erased)} made before {before} erased: {size}")


def _days(text: str) -> float:
    """Returns the days of a text such as 90d or 12w. Raises `ConfigError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([dw])", text.strip())
    if match is None:
        raise ConfigError("keep", text, "give a number of days or weeks, such as 90d or 12w")
    number, unit = match.groups()
    days = float(number) * DAYS[unit]
    PRUNED_DAYS.check("keep", days)
    if not days:
        raise ConfigError("keep", text, "all would go: give at least 0.1d")
    return days


def _counted(n_runs: int, n_tournaments: int) -> str:
    words = formats.count(n_runs, "run")
    if n_tournaments:
        words += f" and {formats.count(n_tournaments, 'tournament')}"
    return words
