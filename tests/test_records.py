"""Configs are checked once and travel as JSON; every column says what it means and in which unit."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitprof.errors import ConfigError
from vitprof.records import (
    BUDGETS,
    CONFIG_COLUMNS,
    KNOBS,
    STEP_COLUMNS,
    SUMMARY_COLUMNS,
    TELEMETRY_COLUMNS,
    RunConfig,
    RunSummary,
    StepRecord,
    TelemetrySample,
    columns,
    json_number,
    summary_from_dict,
    summary_to_dict,
)

NAN, INF = math.nan, math.inf
UNITS = ("_s", "_ms", "_ms_median", "_ms_p95", "_pct", "_pct_mean", "_frac", "_bytes", "_bytes_per_s", "_w", "_mhz")
PER_SECOND = ("samples_per_s_low", "samples_per_s_high")
NO_UNIT = {"loss", "loss_first", "loss_last", "test_loss", "test_accuracy", "queue_depth", "cpu_s_per_sample"}


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        *(("batch_size", v, "whole number of at least 1") for v in (0, -1, 1.5, "8", True, None)),
        *((f, v, "whole number of at least 1") for f in ("epochs", "steps") for v in (0, -3, 2.5, True)),
        *(("seconds", v, "a number") for v in (0, -1.0, NAN, INF, "10", True)),
        ("precision", "fp16", "fp32, bf16"),
        ("isolation", "container", "process, thread"),
        *(("device", v, "cpu or cuda:N") for v in ("gpu", "cuda", "cuda:", "cuda:-1", "cuda:x", "CPU", "")),
        ("device", None, "text"),
        *(("image_size", v, "at least 1") for v in (0, -28, 28.0)),
        *(("lr", v, "a number") for v in (0, -0.1, NAN, INF, "fast")),
        *(("seed", v, "whole number from 0 to 4294967295") for v in (-1, 2**32, 1.5, True, "x", None)),
        *(("workers", v, "at least 0") for v in (-1, 1.0, True)),
        *(("prefetch_factor", v, "at least 1") for v in (0, -1)),
        *((f, v, "at least 0") for f in ("warmup_steps", "threads") for v in (-1, 0.5, None)),
        *(("telemetry_hz", v, "a number") for v in (0, -5, 50.1, NAN, INF, None, "5")),
        *((f, "no", "true or false") for f in ("compile", "evaluate", "loader_only", "pin_memory")),
        *((f, 1, "true or false") for f in ("compile", "persistent_workers")),
        ("name", "\udcff", "UTF-8"),  # how Python passes on an argument that is not UTF-8
        ("name", None, "text"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_field_and_what_is_allowed(
    field: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig(**{field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: {value!r} is not possible; ")
    assert allowed in caught.value.allowed
    assert "\n" not in str(caught.value)


def test_the_message_about_a_long_name_is_not_long_itself() -> None:
    RunConfig(name="x" * 200)
    with pytest.raises(ConfigError, match="at most 200 characters") as caught:
        RunConfig(name="x" * 100_000)
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": 1, "steps": 1, "seed": 0, "warmup_steps": 0, "threads": 0, "workers": 0, "prefetch_factor": 1},
        {"seed": 2**32 - 1, "telemetry_hz": 50, "seconds": 1, "lr": 1},
        {"device": "cuda:0"},
        {"device": "cuda:15", "seconds": 0.001},
        {"name": 'Größe 🚀, "quoted"\n=1+1'},
    ],
)
def test_values_at_the_edge_of_what_is_allowed_are_taken_as_they_are(values: dict[str, Any]) -> None:
    config = RunConfig(**values)
    assert {name: getattr(config, name) for name in values} == values


def test_without_a_budget_a_run_takes_one_epoch() -> None:
    assert [getattr(RunConfig(), b) for b in BUDGETS] == [1, None, None]
    assert [getattr(RunConfig(steps=7), b) for b in BUDGETS] == [None, 7, None]
    assert [getattr(RunConfig(seconds=2.5), b) for b in BUDGETS] == [None, None, 2.5]


@pytest.mark.parametrize(("first", "second"), [("epochs", "steps"), ("epochs", "seconds"), ("steps", "seconds")])
def test_two_budgets_are_refused(first: str, second: str) -> None:
    with pytest.raises(ConfigError, match=f"^{second}: 3 is not possible; .* {first} is given already") as caught:
        RunConfig(**{first: 2, second: 3})
    assert caught.value.field == second


configs = st.builds(
    RunConfig,
    name=st.text(max_size=30),
    strategy=st.sampled_from(["per-sample", "workers"]),
    batch_size=st.integers(1, 2**40),
    seconds=st.none() | st.floats(0, exclude_min=True, allow_infinity=False),
    lr=st.none() | st.floats(0, exclude_min=True, allow_infinity=False),
    workers=st.none() | st.integers(0, 64),
    pin_memory=st.none() | st.booleans(),
    loader_only=st.booleans(),
    telemetry_hz=st.floats(0.1, 50),
)


@settings(max_examples=50)
@given(configs)
def test_a_config_survives_the_way_through_json(config: RunConfig) -> None:
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config


def test_a_setting_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^batchsize: 8 is not possible; there is no such setting$"):
        RunConfig.from_dict({"batchsize": 8})


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().batch_size = 0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"name": "mine", "workers": 2}, "mine"),
        ({"strategy": "memory", "batch_size": 512}, "memory, batch 512"),
        ({"strategy": "workers", "workers": 1}, "workers, batch 128, 1 worker"),
        ({"strategy": "workers", "workers": 4, "loader_only": True}, "workers, batch 128, 4 workers, loader only"),
        ({"strategy": "workers", "workers": 0}, "workers, batch 128"),
        (
            {"model": "s/16", "precision": "bf16", "compile": True, "strategy": "device"},
            "device, batch 128, s/16, bf16, compiled",
        ),
    ],
)
def test_a_run_without_a_name_is_called_after_what_tells_runs_apart(values: dict[str, Any], label: str) -> None:
    assert RunConfig(**values).label == label


@pytest.mark.parametrize("record", [StepRecord, TelemetrySample, RunSummary])
def test_every_column_says_what_it_means_and_carries_its_unit(record: type) -> None:
    table = columns(record)
    assert len({c.name for c in table}) == len(table)
    for column in table:
        assert len(column.doc) > 10, column.name
        known = column.integer or column.name in NO_UNIT or column.name.endswith((*UNITS, *PER_SECOND, "_temp_c"))
        assert known, f"{column.name} has no unit"
        assert isinstance(getattr(record(), column.name), int) == column.integer


def test_every_setting_has_a_help_text_and_every_knob_is_a_setting_that_can_be_left_open() -> None:
    fields = {f.name: f for f in dataclasses.fields(RunConfig)}
    assert all(f.metadata["doc"] for f in fields.values())
    assert all(fields[knob].default is None for knob in KNOBS)
    assert set(CONFIG_COLUMNS) == set(fields) - {"name"}


def test_the_tables_hold_what_was_promised() -> None:
    # DESIGN.md section 5
    steps = "rank step epoch t_start_s data_wait_s h2d_s compute_s gap_s exposed_wait_s step_s samples loss warmup "
    steps += "read_s decode_s transform_s collate_s queue_depth"
    assert set(steps.split()) <= set(STEP_COLUMNS)
    telemetry = "t_s gpu_util_pct gpu_mem_used_bytes gpu_mem_job_bytes gpu_power_w gpu_sm_clock_mhz gpu_temp_c "
    telemetry += "pcie_rx_bytes_per_s cpu_pct job_cpu_pct job_rss_bytes disk_read_bytes_per_s"
    assert set(telemetry.split()) == set(TELEMETRY_COLUMNS)
    # issue 2, part 10
    summary = "n_steps samples_per_s epoch_s step_ms_median step_ms_p95 data_wait_frac device_idle_frac "
    summary += "gpu_util_pct_mean gpu_mem_peak_bytes rss_peak_bytes cpu_s_per_sample prepare_s loss_first loss_last "
    summary += "test_accuracy"
    assert set(summary.split()) <= set(SUMMARY_COLUMNS)


@pytest.mark.parametrize(
    ("value", "shown"), [(NAN, None), (INF, None), (-INF, None), (None, None), (0, 0), (-0.5, -0.5)]
)
def test_json_carries_null_for_what_is_no_number(value: float | None, shown: float | None) -> None:
    assert json_number(value) == shown


def test_a_summary_survives_json_and_tells_not_available_from_zero() -> None:
    summary = RunSummary(n_steps=3, epoch_s=0.0, loss_last=INF, test_accuracy=0.5)
    values = json.loads(json.dumps(summary_to_dict(summary), allow_nan=False))
    assert list(values) == list(SUMMARY_COLUMNS)
    assert (values["n_steps"], values["epoch_s"], values["loss_last"], values["step_ms_p95"]) == (3, 0.0, None, None)
    back = summary_from_dict(values | {"of_a_later_version": 1})
    assert (back.n_steps, back.epoch_s, back.test_accuracy) == (3, 0.0, 0.5)
    assert math.isnan(back.loss_last)
    assert math.isnan(back.step_ms_p95)
    assert isinstance(back.n_steps, int)
