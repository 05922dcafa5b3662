"""What `doctor` prints."""

from __future__ import annotations

from vitprof.cli.schemas.fields import TEXT, Shape, field, listed, one_of
from vitprof.cli.schemas.runs import VERSION

CHECK_OF_DOCTOR = Shape(
    "doctor-check",
    "Checks of a machine",
    "One thing that was looked at.",
    {
        "name": field(TEXT, "what was looked at, such as shared memory"),
        "found": field(TEXT, "what is there, in words"),
        "verdict": field(
            one_of("ok", "note", "bad"), "ok: as it should be; note: works, with a limit; bad: something will fail"
        ),
        "meaning": field(TEXT, "what follows from it and what to do; empty where there is nothing to say"),
    },
)
DOCTOR = Shape(
    "doctor",
    "A machine",
    "Whether it has what vitprof needs. The exit status is 1 where a verdict is bad.",
    {"schema_version": VERSION, "checks": field(listed(CHECK_OF_DOCTOR), "in the order in which they matter")},
)
