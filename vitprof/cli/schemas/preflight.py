"""What `doctor` prints."""

from __future__ import annotations

from vitprof.cli.schemas.fields import TEXT, Shape, field, listed, one_of
from vitprof.cli.schemas.runs import VERSION

CHECK_OF_DOCTOR = Shape(
    "doctor-check",
    "Checks of a machine",
    "One thing that was checked.",
    {
        "name": field(TEXT, "what was checked, such as shared memory"),
        "found": field(TEXT, "what was found, in words"),
        "verdict": field(
            one_of("ok", "note", "bad"), "ok: as it should be; note: works, with a limit; bad: something will fail"
        ),
        "meaning": field(TEXT, "what it means and what to do; empty where there is nothing to say"),
    },
)
DOCTOR = Shape(
    "doctor",
    "A machine",
    "Whether the machine has what vitprof needs. The exit status is 1 if a verdict is bad.",
    {"schema_version": VERSION, "checks": field(listed(CHECK_OF_DOCTOR), "the checks, the most important first")},
)
