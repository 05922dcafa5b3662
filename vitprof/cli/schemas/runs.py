"""Output of `run`, `runs`, `watch` and `export`: a run as JSON."""

from __future__ import annotations

import dataclasses
from typing import get_args

from vitprof.cli.schemas.facts import ENVIRONMENT, FACTS
from vitprof.cli.schemas.fields import (
    NUMBER,
    SWITCH,
    TEXT,
    UNKNOWN,
    WHOLE,
    Field,
    Shape,
    field,
    fields_of,
    listed,
    named,
    one_of,
)
from vitprof.config import BUDGETS, CHOICES, RunConfig
from vitprof.recording.columns import SCHEMA_VERSION, Phase, RunSummary, Status, StepRecord, TelemetrySample, columns
from vitprof.recording.verdict import Advice, Kind, Share, Signature, SingleEvent, Verdict

VERSION = field({"type": "integer", "const": SCHEMA_VERSION}, "version of the fields and their meaning")
RUN_ID = field(WHOLE, "number of the run in the store that it was read from")
SIMULATED = field(SWITCH, "whether the device was simulated")
NO_BUDGET = "where the run has another budget"
NO_SUM = "where the run was never summed up"
NO_SETTING = "where it is not set"

_config = fields_of(RunConfig, null="")
CONFIG = Shape(
    "config",
    "Settings of a run",
    "All settings of a job: those that were given and, once the job has begun, the defaults that it took for the rest. "
    "Each is an option of `vitprof run`.",
    {
        name: dataclasses.replace(
            one,
            kind=one_of(*CHOICES[name]) if name in CHOICES else one.kind,
            unit="s" if name == "seconds" else "pixels" if name == "image_size" else one.unit,
            null="" if not one.null else NO_BUDGET if name in BUDGETS else NO_SETTING,
        )
        for name, one in _config.items()
    },
)

SUMMARY = Shape(
    "summary",
    "Figures of a run",
    "The figures, over the steady state unless they say otherwise. A run that was never summed up has null for each.",
    {
        c.name: field(WHOLE if c.integer else NUMBER, c.doc, unit=named(c.name), null=NO_SUM if c.integer else UNKNOWN)
        for c in columns(RunSummary)
    },
)

SHARE = Shape(
    "share",
    "Shares of the idle time",
    "How much of the device's idle time is due to one stage of loading, or to the rest of it.",
    fields_of(Share),
)
ADVICE = Shape(
    "advice",
    "Things to try",
    "Something to try, and the gain that is known for it.",
    fields_of(
        Advice,
        low=field(NUMBER, "lower end of its 95% interval", unit="samples/s", null=UNKNOWN),
        high=field(NUMBER, "upper end of its 95% interval", unit="samples/s", null=UNKNOWN),
    ),
)
SIGNATURE = Shape("signature", "Patterns found", "A pattern in a run that points at one cause.", fields_of(Signature))
SINGLE_EVENT = Shape(
    "single_event",
    "A step that decides",
    "The step with the longest wait, where it decides the class.",
    fields_of(SingleEvent, null=""),
)
VERDICT = Shape(
    "verdict",
    "The verdict",
    "Whether the run was input-bound, by what, and what to do about it. Shares are of the time in steady state.",
    fields_of(
        Verdict,
        shapes={Share: SHARE, Advice: ADVICE, Signature: SIGNATURE},
        kind=field(one_of(*get_args(Kind)), "the verdict in a word or two"),
        single_event=field(
            SINGLE_EVENT,
            "the one step without which the verdict would be another",
            null="where no single step decides it",
            absent="in a run of a version that did not look for it",
        ),
        speed_up_low=field(NUMBER, "lower end of the 95% interval of speed_up_if_free", null=UNKNOWN),
        speed_up_high=field(NUMBER, "upper end of the 95% interval of speed_up_if_free", null=UNKNOWN),
    ),
)

RUN = Shape(
    "run",
    "A run",
    "What is known of a run, without its steps.",
    {
        "schema_version": VERSION,
        "run_id": RUN_ID,
        "name": field(TEXT, "name of the run"),
        "status": field(one_of(*get_args(Status)), "its state now"),
        "created_utc": field(TEXT, "when it was submitted, ISO 8601 with a Z"),
        "config": field(CONFIG, "its settings"),
        "simulated": SIMULATED,
        "environment": field(ENVIRONMENT, "the machine and the software"),
        "facts": field(FACTS, "what was measured once: preparing, staging, transforms"),
        "verdict": field(VERDICT, "whether loading held the device up", null="where it has no steps, or has not ended"),
        "summary": field(SUMMARY, "its figures"),
        "notices": field(listed(TEXT), "what to know when reading the figures, one line each"),
        "error": field(TEXT, "why it failed, in one line", null="where it did not fail"),
    },
)
LISTED = Shape(
    "listed-run",
    "A run of a list",
    "What is known of a run, and what a person wrote about it.",
    {
        "tags": field(listed(TEXT), "its tags, sorted"),
        "note": field(TEXT, "the note that a person wrote about it; empty if there is none"),
    },
    also=RUN,
)
RUNS = Shape(
    "runs",
    "Runs of the store",
    "The runs that match, in the order that was asked for.",
    {"schema_version": VERSION, "runs": field(listed(LISTED), "one for each run")},
)


def _columns(record: type) -> dict[str, Field]:
    """Returns a list of values for each column of a record."""
    return {
        c.name: field(
            listed(WHOLE if c.integer else {"type": ["number", "null"]}),
            c.doc,
            unit=named(c.name),
        )
        for c in columns(record)
    }


MOMENTS = "All lists have the same length. Moments are seconds since the job left the queue; null means not known."
STEPS = Shape("steps", "Steps by column", f"One value for each step, in order. {MOMENTS}", _columns(StepRecord))
TELEMETRY = Shape(
    "telemetry",
    "Telemetry by column",
    f"One value for each sample, in order. {MOMENTS}",
    {"seq": field(listed(WHOLE), "number of the sample in the run, from 0"), **_columns(TelemetrySample)},
)
PHASE = Shape(
    "phase",
    "Phases of a run",
    "A span of a run that is not a step.",
    fields_of(
        Phase,
        null="",
        name=field(TEXT, "prepare, stage, startup, evaluate or shutdown"),
        t_start_s=field(NUMBER, "when it began, since the job left the queue", unit="s"),
        t_end_s=field(NUMBER, "when it ended, since the job left the queue", unit="s"),
    ),
)
NOT_ASKED = "without `--steps`"
EXPORTED = Shape(
    "exported-run",
    "A run of an export",
    "What is known of a run; with `--steps` all that was measured.",
    {
        "phases": field(listed(PHASE), "what the run did other than steps", absent=NOT_ASKED),
        "steps": field(STEPS, "its steps, one list for each column", absent=NOT_ASKED),
        "telemetry": field(TELEMETRY, "its telemetry, one list for each column", absent=NOT_ASKED),
    },
    also=RUN,
)
EXPORT = Shape(
    "export",
    "Runs of an export",
    "The runs that were named, in the order in which they were named.",
    {"schema_version": VERSION, "runs": field(listed(EXPORTED), "one for each run")},
)
