"""Output of `run`, `headroom`, `predict`, `check`, `strategies` and `import`."""

from __future__ import annotations

from typing import get_args

from vitprof.analysis.check.bounds import Kind, Outcome
from vitprof.analysis.verdict.headroom import ADDED_STAGE, ANCHOR_ROLES, Anchor, Headroom, StageCost
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
from vitprof.cli.schemas.runs import CONFIG, RUN, SIMULATED, VERSION
from vitprof.config.availability import Verdict
from vitprof.config.strategies import Strategy

PER_SAMPLE = "s a sample"
N_RUNS = field(WHOLE, "runs behind it")

ANCHOR = Shape(
    "anchor",
    "Anchors",
    "A variant of the job whose data cost less than the next one's, over all its repeats.",
    fields_of(
        Anchor,
        role=field(
            one_of(*ANCHOR_ROLES),
            "data are A: on the device, B: in host memory, C: in files in memory, D: in files not in memory",
        ),
        low=field(NUMBER, "lower end of the 95% interval of s_per_sample", unit=PER_SAMPLE, null=UNKNOWN),
        high=field(NUMBER, "upper end of the 95% interval of s_per_sample", unit=PER_SAMPLE, null=UNKNOWN),
        n_runs=N_RUNS,
    ),
)
COST = Shape(
    "stage-cost",
    "Costs of stages",
    "What a stage of loading costs: the difference of two anchors.",
    fields_of(
        StageCost,
        name=field(TEXT, f"{', '.join(ADDED_STAGE.values())}; two together where the anchor between them is missing"),
        low=field(NUMBER, "lower end of the 95% interval of s_per_sample", unit=PER_SAMPLE, null=UNKNOWN),
        high=field(NUMBER, "upper end of the 95% interval of s_per_sample", unit=PER_SAMPLE, null=UNKNOWN),
        share=field(NUMBER, "share of the time of the slowest anchor", unit="share", null=UNKNOWN),
    ),
)
_headroom = fields_of(Headroom, shapes={Anchor: ANCHOR, StageCost: COST}, leave=("stages",))
HEADROOM = Shape(
    "headroom",
    "Headroom",
    "How many times as fast the job would be if its data were free, measured by replaying batches.",
    {
        **_headroom,
        "parts": field(listed(COST), "what each stage of loading costs"),
        "sentence": field(TEXT, "the result in a sentence"),
    },
)
OF_RUN = Shape(
    "headroom-of-run",
    "The headroom of a run",
    "How much faster a run of the store would be with free data.",
    {
        "schema_version": VERSION,
        "run_id": field(WHOLE, "the run"),
        "headroom": field(HEADROOM, "what was measured", null="where nothing was measured"),
    },
)
RAN = Shape(
    "ran",
    "A job that was run",
    "The run, and with `--headroom` how much faster it would be with free data.",
    {
        "headroom": field(
            HEADROOM,
            "how much faster it would be with free data",
            null="where it was stopped before anything was measured",
            absent="without `--headroom`, and where the run did not end as done",
        )
    },
    also=RUN,
)

NOT_RUN = "where it was not run"
PREDICTION = Shape(
    "prediction",
    "Predictions",
    "The throughput that another strategy would reach.",
    {
        "prediction_id": field(WHOLE, "number of the prediction in the store"),
        "strategy": field(TEXT, "the strategy"),
        "config": field(CONFIG, "the job that was predicted, ready to be run"),
        "samples_per_s": field(NUMBER, "predicted throughput", unit="samples/s"),
        "low": field(NUMBER, "lower end of its 95% interval", unit="samples/s", null=UNKNOWN),
        "high": field(NUMBER, "upper end of its 95% interval", unit="samples/s", null=UNKNOWN),
        "measured_samples_per_s": field(NUMBER, "throughput of the run that checks it", unit="samples/s", null=NOT_RUN),
        "error_frac": field(NUMBER, "(predicted - measured) / measured", unit="share", null=NOT_RUN),
        "verified_run_id": field(WHOLE, "the run that checks it", null=NOT_RUN),
    },
)
CALIBRATION = Shape(
    "calibration",
    "How good predictions were",
    "The errors of all predictions like these that were checked by running them.",
    {
        "n": field(WHOLE, "predictions that were checked"),
        "median_abs_error_frac": field(
            NUMBER, "median of |predicted - measured| / measured", unit="share", null="where none was checked"
        ),
        "inside_frac": field(
            NUMBER, "share whose measured throughput lies in the interval", unit="share", null="where none was checked"
        ),
    },
)
PREDICTIONS = Shape(
    "predictions",
    "Predictions for a run",
    "The throughput that other strategies would reach with the job of a run.",
    {
        "schema_version": VERSION,
        "run_id": field(WHOLE, "the run whose job it is"),
        "predictions": field(listed(PREDICTION), "one for each strategy that could be measured"),
        "calibration": field(CALIBRATION, "how good such predictions were here"),
        "failed": field(listed(TEXT), "strategies that could not be measured, and why, one line each"),
    },
)

OF_LIMIT = "as `limit`"
REFUSED = "where it was refused"
JUDGED = Shape(
    "judged",
    "Bounds that were checked",
    "A bound, and whether it was met.",
    {
        "bound": field(one_of(*get_args(Kind)), "which bound it is"),
        "limit": field(NUMBER, "its limit", unit="share; samples/s for min_samples_per_s"),
        "outcome": field(
            one_of(*get_args(Outcome)), "met or missed where the whole interval is on that side of the limit"
        ),
        "value": field(NUMBER, "what was measured", unit=OF_LIMIT, null=f"{REFUSED}, or is not known"),
        "low": field(NUMBER, "lower end of its 95% interval", unit=OF_LIMIT, null=f"{REFUSED}, or is not known"),
        "high": field(NUMBER, "upper end of its 95% interval", unit=OF_LIMIT, null=f"{REFUSED}, or is not known"),
        "n_runs": field(WHOLE, "runs behind it; for a slowdown those of both sides", null=REFUSED),
        "n_steps": field(WHOLE, "steady steps of these runs", null=REFUSED),
        "between_runs": field(SWITCH, "whether the interval includes the noise from run to run", null=REFUSED),
        "reason": field(TEXT, "why it was refused, or what would decide it", null="where it is decided"),
        "sentence": field(TEXT, "the result in one line"),
    },
)
CHECK = Shape(
    "check",
    "A check",
    "Runs checked against bounds.",
    {
        "schema_version": VERSION,
        "exit_status": field(WHOLE, "0: all met, 1: one is missed, 2: one is undecided or refused"),
        "runs": field(listed(TEXT), "labels of the runs"),
        "baseline": field(listed(TEXT), "labels of the runs that they are compared with"),
        "simulated": SIMULATED,
        "bounds": field(listed(JUDGED), "one for each bound that was given"),
        "remarks": field(listed(TEXT), "differences between the runs that were allowed"),
    },
)

STRATEGY = Shape(
    "strategy",
    "Strategies",
    "A strategy, as it is for this data set on this machine.",
    fields_of(
        Strategy,
        name=field(TEXT, "its name, for `run --strategy`"),
        title=field(TEXT, "its title"),
        storage=field(TEXT, "the format samples are stored in"),
        loader=field(TEXT, "what builds batches"),
        transfer=field(TEXT, "how a batch reaches the device"),
        location=field(TEXT, "where the storage is kept"),
        defaults=field(by_name(ANYTHING), "settings that it takes, with their defaults here"),
        fixed=field(by_name(ANYTHING), "settings that belong to it and cannot be changed"),
        available=field(SWITCH, "whether it can run here"),
        availability=field(
            one_of(*get_args(Verdict)), "ok: runs as it should; note: runs, with a limit; bad: would fail"
        ),
        reason=field(TEXT, "why it is not ok, in one line; empty if it is"),
    ),
)
STRATEGY_LIST = Shape(
    "strategies",
    "All strategies",
    "The strategies, for one data set.",
    {
        "schema_version": VERSION,
        "dataset": field(TEXT, "data set that the strategies were checked for"),
        "strategies": field(listed(STRATEGY), "one for each strategy"),
    },
)

CAME = Shape(
    "imported-run",
    "Imported runs",
    "A run of the file, as it is in this store now.",
    {
        "run_id": field(WHOLE, "its number in this store"),
        "name": field(TEXT, "its name"),
        "already_here": field(SWITCH, "whether the store had it already, so that it was left as it is"),
        "helper": field(SWITCH, "whether it belongs to another run, such as an anchor of its headroom"),
    },
)
IMPORT = Shape(
    "import",
    "An import",
    "The runs of a file that `bundle` wrote.",
    {"schema_version": VERSION, "runs": field(listed(CAME), "one for each run of the file")},
)
