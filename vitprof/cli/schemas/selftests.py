"""What `selftest` prints, without and with `--gpu`."""

from __future__ import annotations

from typing import get_args

from vitprof.cli.schemas.fields import (
    ANYTHING,
    NUMBER,
    SWITCH,
    TEXT,
    UNKNOWN,
    WHOLE,
    Shape,
    by_name,
    field,
    fields_of,
    listed,
    one_of,
)
from vitprof.cli.schemas.runs import VERSION
from vitprof.experiments.selftest.gpu.outcome import Outcome, Status
from vitprof.experiments.selftest.report import Result

ABOUT = {
    "schema_version": VERSION,
    "ok": field(SWITCH, "whether all is right"),
    "stopped": field(SWITCH, "whether it was stopped before its end"),
    "sentence": field(TEXT, "all of it in one line"),
    "seconds": field(NUMBER, "what it took", unit="s"),
    "asked": field(WHOLE, "cases that were asked for; fewer have results where it was stopped"),
}
RESULT = Shape(
    "selftest-result",
    "Cases of a self-test",
    "What came of a case: medians over its rounds.",
    fields_of(
        Result,
        case=field(TEXT, "name of the case"),
        what=field(TEXT, "what is put in the way, in words"),
        reported_ms=field(NUMBER, "what the verdict says that it costs, for each batch", unit="ms", null=UNKNOWN),
        tolerance_ms=field(NUMBER, "the most that error_ms may be", unit="ms", null=UNKNOWN),
        rounds=field(WHOLE, "rounds that were run"),
        cause_ok=field(SWITCH, "whether most rounds named a right cause"),
        size_ok=field(SWITCH, "whether error_ms is within tolerance_ms"),
        idle_ok=field(SWITCH, "whether the idle share is right"),
        ok=field(SWITCH, "whether all of it is right"),
        wrong=field(TEXT, "what is not right, in words; empty if nothing"),
    ),
)
SELFTEST = Shape(
    "selftest",
    "A self-test",
    "Jobs slowed down in known ways on a simulated device, and whether vitprof named cause and size.",
    {**ABOUT, "results": field(listed(RESULT), "one for each case that was run")},
)
GPU_RESULT = Shape(
    "gpu-result",
    "Cases of a self-test on a GPU",
    "What came of a case.",
    {
        "case": field(TEXT, "name of the case"),
        "expected": field(TEXT, "what must be found, in words"),
        "seconds": field(NUMBER, "what it took", unit="s"),
        **fields_of(
            Outcome,
            status=field(one_of(*get_args(Status)), "what came of it"),
            figures=field(by_name(ANYTHING), "every figure behind it, with its unit in its name"),
        ),
    },
)
GPU_SELFTEST = Shape(
    "selftest-gpu",
    "A self-test on a GPU",
    "Whether what vitprof reports is true on this machine's GPU. `selftest-gpu.json` in `VITPROF_HOME` holds the same, "
    "without what names the machine.",
    {
        **ABOUT,
        "advice": field(TEXT, "what to read or do next"),
        "machine": field(by_name(ANYTHING), "device, software and processor; depends on the device"),
        "results": field(listed(GPU_RESULT), "one for each case, also those that could not be run"),
    },
)
