"""Descriptions of what commands print with `--json`, from which their schemas and docs/json.md are made.

Fields that come from a dataclass are described by its docstrings and types, so that the two stay the same. Tests check
what the commands print against these schemas, which allow no other fields.
"""

from __future__ import annotations

from typing import Any

from vitprof.cli.schemas import measurements, preflight, runs, selftests, tournaments
from vitprof.cli.schemas.fields import Shape
from vitprof.cli.schemas.json_schema import document

PRINTED: dict[str, tuple[Shape, str]] = {
    "run": (measurements.RAN, "run --json"),
    "runs": (runs.RUNS, "runs --json"),
    "runs-one": (runs.RUN, "runs RUN --json"),
    "watch": (runs.RUN, "watch --json FILE -- COMMAND"),
    "export": (runs.EXPORT, "export RUN... --format json"),
    "headroom": (measurements.OF_RUN, "headroom RUN --json"),
    "predict": (measurements.PREDICTIONS, "predict RUN --json"),
    "strategies": (measurements.STRATEGY_LIST, "strategies --json"),
    "tournament": (tournaments.TOURNAMENT, "tournament ... --json"),
    "tournament-list": (tournaments.TOURNAMENTS, "tournament --list --json"),
    "tournament-auto": (tournaments.TUNING, "tournament --auto ... --json"),
    "check": (measurements.CHECK, "check RUNS ... --json"),
    "doctor": (preflight.DOCTOR, "doctor --json"),
    "selftest": (selftests.SELFTEST, "selftest --json"),
    "selftest-gpu": (selftests.GPU_SELFTEST, "selftest --gpu --json"),
    "import": (measurements.IMPORT, "import FILE --json"),
}
"""Name of a schema -> the object, and the command that prints it (without `vitprof`)."""


def schema(name: str) -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of the object called `name` in `PRINTED`; else raises `KeyError`."""
    return document(PRINTED[name][0], name)
