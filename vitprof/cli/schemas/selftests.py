"""Output of `selftest`, without and with `--gpu`."""

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
from vitprof.selftest.report import Outcome, Status
from vitprof.selftest.results import Result

ABOUT = {
    "schema_version": VERSION,
    "ok": field(SWITCH, "whether no case failed and it was not stopped"),
    "stopped": field(SWITCH, "whether it was stopped before its end"),
    "sentence": field(TEXT, "the result in one line"),
    "seconds": field(NUMBER, "how long it took", unit="s"),
    "asked": field(WHOLE, "cases that were asked for; fewer have results where it was stopped"),
}
RESULT = Shape(
    "selftest-result",
    "Cases of a self-test",
    "The result of a case: medians over its rounds.",
    fields_of(
        Result,
        case=field(TEXT, "name of the case"),
        what=field(TEXT, "how the job is slowed down, in words"),
        reported_ms=field(NUMBER, "cost for each batch that the verdict reports", unit="ms", null=UNKNOWN),
        tolerance_ms=field(NUMBER, "largest error_ms that is allowed", unit="ms", null=UNKNOWN),
        rounds=field(WHOLE, "rounds that were run"),
        cause_ok=field(SWITCH, "whether most rounds named a right cause"),
        size_ok=field(SWITCH, "whether error_ms is within tolerance_ms"),
        idle_ok=field(SWITCH, "whether the idle share is right"),
        ok=field(SWITCH, "whether cause, size and idle share are right, and no job failed"),
        wrong=field(TEXT, "what is wrong, in words; empty if nothing is"),
    ),
)
SELFTEST = Shape(
    "selftest",
    "A self-test",
    "Jobs slowed down in known ways on a simulated device, and whether vitprof found the cause and its size.",
    {**ABOUT, "results": field(listed(RESULT), "one for each case that was run")},
)
GPU_RESULT = Shape(
    "gpu-result",
    "Cases of a self-test on a GPU",
    "The result of a case.",
    fields_of(
        Outcome,
        status=field(one_of(*get_args(Status)), "whether it passed"),
        figures=field(by_name(ANYTHING), "every figure behind it, with its unit in its name"),
        seconds=field(NUMBER, "how long it took", unit="s"),
    ),
)
GPU_SELFTEST = Shape(
    "selftest-gpu",
    "A self-test on a GPU",
    "Whether what vitprof reports is true on this machine's GPU. `selftest-gpu.json` in `VITPROF_HOME` holds the same, "
    "without anything that identifies the machine.",
    {
        **ABOUT,
        "advice": field(TEXT, "what to read or do next"),
        "machine": field(by_name(ANYTHING), "device, software and processor; depends on the device"),
        "results": field(listed(GPU_RESULT), "one for each case, also those that could not be run"),
    },
)
