"""The runs of the store, searched and filtered as by `vitprof runs`."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vitprof.errors import ConfigError, StoreError
from vitprof.notebook import needed

if TYPE_CHECKING:
    from vitprof.notebook.one_run import Run
    from vitprof.store import RunStore

Several = str | Iterable[str]
"""One value, or several: a run matches if it has any of them."""


def runs(
    text: str = "",
    *,
    tag: Several = (),
    strategy: Several = (),
    dataset: Several = (),
    device: Several = (),
    verdict: Several = (),
    status: Several = (),
    helpers: bool = False,
    sort: str = "id",
    ascending: bool = False,
    limit: int | None = None,
) -> list[Run]:
    """Returns the runs of the store as they are now (see `Run`), newest first.

    The filters are the options of `vitprof runs`. `text`: words to find in name, note, tags, strategy, data set or
    device. `tag` to `status`: one value or several; a run matches if it has any of them. `helpers`: whether to include
    runs made for other runs, such as anchors of headroom and trials of tournaments. `sort`: id, name, strategy,
    samples_per_s or idle_frac. `limit`: the most runs to return; None for all. Runs that another version of vitprof
    wrote and this one cannot read are left out.

    Raises `ConfigError` for a value that is not allowed, `VitprofError` if the store cannot be opened or a package is
    missing.
    """
    with needed():
        from vitprof.notebook.one_run import Run
        from vitprof.recording.columns import ENDED_STATUSES, LIVE_STATUSES
        from vitprof.store import MAX_ID, SORTS, RunQuery

    statuses = _several(status)
    for one in statuses:
        if one not in (*LIVE_STATUSES, *ENDED_STATUSES):
            raise ConfigError("status", one, f"choose one of {', '.join((*LIVE_STATUSES, *ENDED_STATUSES))}")
    if sort not in SORTS:
        raise ConfigError("sort", sort, f"choose one of {', '.join(SORTS)}")
    most = MAX_ID if limit is None else _whole("limit", limit)
    if not 1 <= most <= MAX_ID:
        raise ConfigError("limit", limit, "give a whole number of at least 1")
    query = RunQuery(
        text=text,
        tags=_several(tag),
        strategies=_several(strategy),
        datasets=_several(dataset),
        devices=_several(device),
        verdicts=_several(verdict),
        statuses=statuses,
        helpers=helpers,
        sort=sort,
        descending=not ascending,
    )
    found = []
    with _store() as store:
        for row in store.list_runs(query, limit=most):
            with contextlib.suppress(StoreError):  # deleted meanwhile, or of another version
                found.append(Run(store.run(row.id), row.tags))
    return found


def run(run_id: int) -> Run:
    """Returns one run of the store, as it is now.

    Raises `ConfigError` if `run_id` is not a whole number, `VitprofError` if there is no such run, it cannot be read,
    or a package is missing.
    """
    with needed():
        from vitprof.notebook.one_run import Run
    number = _whole("run_id", run_id)
    with _store() as store:
        return Run(store.run(number), store.tags(number))


@contextlib.contextmanager
def _store() -> Iterator[RunStore]:
    """Opens the store for the block. Runs whose program is gone are summed up first, as on the command line."""
    with needed():
        from vitprof.jobs.finalise import settle_interrupted
        from vitprof.store import RunStore
    with contextlib.closing(RunStore()) as store:
        settle_interrupted(store)
        yield store


def _several(given: Several) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _whole(name: str, value: int) -> int:
    """Returns `value` as an int, also where it is one of NumPy's. Raises `ConfigError` if it is no whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(name, value, "give a whole number") from None
