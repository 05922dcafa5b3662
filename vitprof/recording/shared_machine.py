"""What is said of other runs that ran on the machine at the same time.

A notice of each is stored with a run. Whoever shows notices to a person says the same of all of them
once (`as_shown`): beside a tournament of another store there is one for each of its trials.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

SHARED = "ran at the same time: they shared CPU and disk, so loading may be slower here than in a run alone"
"""How the notice of each other run ends."""
_NOTICE = re.compile(
    rf"(?:run (?P<run>\d+)(?P<elsewhere> of another store)?|a job) on .* {re.escape(SHARED)}",
    re.DOTALL,
)


def notice(run: str, device: str, about: str) -> str:
    """Returns the notice of another run, which `run` names. `about`: its name, or the program that it is of."""
    return f"{run} on {device} ({about}) {SHARED}"


def as_shown(notices: Iterable[str]) -> tuple[str, ...]:
    """Returns the notices of a run with one for all other runs that ran at the same time, in place of the
    first of them."""
    notices = tuple(notices)
    found = {line: match for line in notices if (match := _NOTICE.fullmatch(line))}
    if len(found) < 2:
        return notices
    shown = dict.fromkeys(line if line not in found else "" for line in notices)
    whole = f"{_runs_in_words(list(found.values()))} {SHARED}"
    return tuple(line or whole for line in shown)


def _runs_in_words(found: Sequence[re.Match[str]]) -> str:
    """Returns "runs 3 and 4, runs 51 to 54 of another store and a job"."""
    here = [int(match["run"]) for match in found if match["run"] and not match["elsewhere"]]
    elsewhere = [int(match["run"]) for match in found if match["elsewhere"]]
    n_unnumbered = len(found) - len(here) - len(elsewhere)
    parts = []
    for runs, where in ((here, ""), (elsewhere, " of another store")):
        if runs:
            parts.append(f"run{'s' if len(runs) > 1 else ''} {_numbers_in_words(runs)}{where}")
    if n_unnumbered:
        parts.append("a job" if n_unnumbered == 1 else f"{n_unnumbered} jobs")
    return _listed(parts)


def _numbers_in_words(numbers: Sequence[int]) -> str:
    """Returns numbers in order, three and more in a row as a range: "3, 51 to 54 and 58"."""
    rows = list[list[int]]()
    for number in sorted(numbers):
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    parts = list[str]()
    for row in rows:
        parts += [f"{row[0]} to {row[-1]}"] if len(row) > 2 else map(str, row)
    return _listed(parts)


def _listed(parts: Sequence[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
