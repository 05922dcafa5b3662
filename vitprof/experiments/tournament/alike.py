"""What is common to the failed settings of a tournament: whether the others would fail, too, and what is
said where all that ran have failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vitprof.analysis.tournament.entries import key_in_words
from vitprof.config import PARTS, RunConfig
from vitprof.errors import UNREADABLE_SAMPLE
from vitprof.experiments.tournament.planning import PlannedTrial
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.store import RunStore, StoredRun


@dataclass(frozen=True)
class _Failure:
    """A setting and its failed run."""

    key: str
    config: RunConfig
    run: StoredRun


def why_all_fail(store: RunStore, now: TournamentState, planned: Sequence[PlannedTrial]) -> str:
    """Returns why each setting would fail as the first ones did; "" where others may do better, or
    where a run has given a figure.

    An image that cannot be read fails all: a setting whose decoder takes it would be compared on other
    images. Any other error does if it is the same word for word, and the settings that failed have no
    part in common but what all have: so none of these parts is to blame.
    """
    outcomes = [outcome for entry in now.entries for outcome in entry.outcomes]
    if any(outcome.status in ("done", "cut") for outcome in outcomes):
        return ""
    failures = _failures(store, now, planned)
    if not failures:
        return ""
    first = failures[0]
    every = f"every setting would fail as {key_in_words(first.key)} did"
    if first.run.facts.get(UNREADABLE_SAMPLE):
        return f"{every}: {first.run.error}"
    same = {failure.run.error for failure in failures}
    if len(failures) < 2 or len(same) > 1:
        return ""
    able = [trial.config for trial in planned if not trial.refused]
    failed = [failure.config for failure in failures]
    for part in ("strategy", "batch_size", "workers", *PARTS):
        if len(_values(part, able)) > 1 and len(_values(part, failed)) < 2:
            return ""
    return f"{every}: {first.run.error}"


def all_failed_words(now: TournamentState) -> str:
    """Returns how many settings failed, and why, such as "3 of 4 settings failed, and no other has a
    figure; the first: ..."; "" where one has a figure, or none failed.
    """
    statuses = {outcome.status for entry in now.entries for outcome in entry.outcomes}
    failed = [entry for entry in now.entries if entry.status == "failed"]
    if not failed or statuses & {"done", "cut"}:
        return ""
    able = [entry for entry in now.entries if entry.status != "refused"]
    what = f"{len(failed)} of {len(able)} settings failed, and no other has a figure"
    if len(failed) == len(able):
        what = "every setting failed"
    which = "; the first" if len(failed) > 1 else ""
    return f"{what}{which}: {failed[0].reason}"


def _failures(
    store: RunStore, now: TournamentState, planned: Sequence[PlannedTrial]
) -> list[_Failure]:
    """Returns the failed runs, the oldest first."""
    config = {trial.key: trial.config for trial in planned}
    failures = []
    for entry in now.entries:
        for outcome in entry.outcomes:
            if outcome.status == "failed":
                failures.append(_Failure(entry.key, config[entry.key], store.run(outcome.run_id)))
    return sorted(failures, key=lambda failure: failure.run.id)


def _values(name: str, configs: Sequence[RunConfig]) -> set[object]:
    return {getattr(config, name) for config in configs}
