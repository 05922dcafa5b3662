"""Every column says what it means and in which unit; summaries and verdicts survive JSON."""

import json
import math
from typing import get_args

import pytest

from vitprof.analysis.timing.loading import STAGE_WORDS
from vitprof.analysis.verdict.evidence import CPU_WORK
from vitprof.analysis.verdict.rendering import cause_subject
from vitprof.charts.style import LOADING_COLOURS
from vitprof.measure.step_columns import BatchTimes
from vitprof.recording import codec, columns
from vitprof.recording.columns import RunSummary
from vitprof.recording.verdict import Share, Verdict

INF = math.inf
UNITS = (
    "_s",
    "_ms",
    "_ms_median",
    "_ms_p95",
    "_pct",
    "_pct_mean",
    "_frac",
    "_bytes",
    "_bytes_per_s",
    "_w",
    "_j",
    "_mhz",
)
PER_SECOND = ("samples_per_s_low", "samples_per_s_high")
NO_UNIT = {
    "loss",
    "loss_first",
    "loss_last",
    "test_loss",
    "test_accuracy",
    "queue_depth",
    "queue_depth_mean",
    "worker",
}
NO_UNIT |= {
    "cpu_s_per_sample",
    "batch_values",
    "collectives",
    "epoch_samples",
    "worker_threads",
    "energy_gpus",
}


@pytest.mark.parametrize(
    "record", [columns.StepRecord, columns.TelemetrySample, columns.RunSummary]
)
def test_every_column_says_what_it_means_and_carries_its_unit(record: type) -> None:
    table = columns.columns(record)
    assert len({c.name for c in table}) == len(table)
    for column in table:
        assert len(column.doc) > 10, column.name
        known = (
            column.integer
            or column.name in NO_UNIT
            or column.name.endswith((*UNITS, *PER_SECOND, "_temp_c"))
        )
        assert known, f"{column.name} has no unit"
        assert isinstance(getattr(record(), column.name), int) == column.integer


def test_the_tables_hold_what_was_promised() -> None:
    steps = "rank step epoch t_start_s data_wait_s h2d_s compute_s gap_s exposed_wait_s step_s samples loss warmup "
    steps += "read_s decode_s transform_s collate_s queue_depth"
    assert set(steps.split()) <= set(columns.STEP_COLUMNS)
    telemetry = "t_s gpu_util_pct gpu_mem_used_bytes gpu_mem_job_bytes gpu_power_w gpu_sm_clock_mhz gpu_temp_c "
    telemetry += "pcie_rx_bytes_per_s cpu_pct job_cpu_pct job_rss_bytes disk_read_bytes_per_s"
    assert set(telemetry.split()) <= set(columns.TELEMETRY_COLUMNS)
    # what exports and pages of earlier versions know
    summary = (
        "n_steps samples_per_s epoch_s step_ms_median step_ms_p95 data_wait_frac device_idle_frac "
    )
    summary += "gpu_util_pct_mean gpu_mem_peak_bytes rss_peak_bytes cpu_s_per_sample prepare_s loss_first loss_last "
    summary += "test_accuracy"
    assert set(summary.split()) <= set(columns.SUMMARY_COLUMNS)


def test_a_summary_survives_json_and_tells_not_available_from_zero() -> None:
    assert [*map(columns.json_number, (math.nan, INF, -INF, None, 0, -0.5))] == [
        None,
        None,
        None,
        None,
        0,
        -0.5,
    ]
    summary = columns.RunSummary(n_steps=3, epoch_s=0.0, loss_last=INF, test_accuracy=0.5)
    values = json.loads(json.dumps(columns.summary_to_dict(summary), allow_nan=False))
    assert list(values) == list(columns.SUMMARY_COLUMNS)
    assert (values["n_steps"], values["epoch_s"], values["loss_last"], values["step_ms_p95"]) == (
        3,
        0.0,
        None,
        None,
    )
    back = columns.summary_from_dict(values | {"of_a_later_version": 1})
    assert (back.n_steps, back.epoch_s, back.test_accuracy) == (3, 0.0, 0.5)
    assert (math.isnan(back.loss_last), math.isnan(back.step_ms_p95), type(back.n_steps)) == (
        True,
        True,
        int,
    )


def test_wherever_stages_of_loading_are_spelled_they_are_those_of_the_records() -> None:
    stages = get_args(columns.Stage)
    assert stages == ("sampler", *columns.TIMED_STAGES, "hand_over", "transfer")
    assert set(columns.DELAYED_STAGES) < set(stages)
    loading = ("sampler", *columns.TIMED_STAGES, "hand_over")
    for stage in loading:
        assert f"{stage}_s" in columns.STEP_COLUMNS
        assert f"{stage}_ms" in columns.SUMMARY_COLUMNS
    assert BatchTimes._fields[: len(columns.TIMED_STAGES)] == tuple(
        f"{stage}_s" for stage in columns.TIMED_STAGES
    )
    assert tuple(STAGE_WORDS) == tuple(LOADING_COLOURS)
    assert tuple(name for name in STAGE_WORDS if name != "rest") == loading
    assert set(CPU_WORK) <= {*stages, "rest", "loading"}
    assert all(cause_subject(cause, "") for cause in (*stages, "rest", "loading"))


VERDICT = Verdict(
    kind="input-bound",
    sentence="So it is.",
    simulated=True,
    shares=(Share("read", math.inf, 4.0, 1.0),),
)


def test_what_is_not_known_is_null_and_comes_back_as_nan() -> None:
    plain = codec.to_plain(VERDICT)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain["idle_frac"], plain["shares"][0]["frac"], plain["shares"][0]["own_ms"]) == (
        None,
        None,
        1.0,
    )
    back = codec.from_plain(Verdict, plain)
    assert math.isnan(back.idle_frac)
    assert math.isnan(back.shares[0].frac)
    assert codec.to_plain(back) == plain


def test_values_of_other_versions_and_types() -> None:
    back = codec.from_plain(RunSummary, {"n_steps": 3, "joules": 2.5})
    assert (back.n_steps, math.isnan(back.samples_per_s)) == (3, True)
    with pytest.raises(ValueError, match="idle_frac") as caught:
        codec.from_plain(Verdict, codec.to_plain(VERDICT) | {"idle_frac": "much"})
    assert codec.first_error(caught.value).startswith("idle_frac: Input should be a valid number")
    schema = codec.schema(RunSummary, "figures")
    assert schema["properties"]["n_steps"] == {
        "type": "integer",
        "description": "number of steps recorded",
    }
    assert schema["properties"]["epoch_s"]["type"] == ["number", "null"]
    assert schema["required"] == list(schema["properties"])
