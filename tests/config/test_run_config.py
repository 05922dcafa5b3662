"""Configs are checked once and travel as JSON."""

import dataclasses
import json
import math
import py_compile
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests import ROOT
from tests.config.configs import FIELDS, configs
from vitprof.config import BUDGETS, CHOICES, CONFIG_COLUMNS, KNOBS, PARTS, RunConfig, descriptions
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.errors import ConfigError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        *(
            ("batch_size", v, "whole number from 1 to 1,000,000")
            for v in (0, -1, 1.5, "8", True, None, 10**12)
        ),
        *(
            ("seconds", v, "a number from 0.001 to 2,592,000")
            for v in (0, -1.0, NAN, INF, "10", True, 1e10)
        ),
        ("precision", "fp8", "fp32, tf32, bf16, fp16"),
        ("isolation", "container", "process, thread"),
        *(
            (name, "nonsense", ", ".join(allowed))
            for name, allowed in CHOICES.items()
            if name not in ("precision",)
        ),
        *((f, "yes", "true or false") for f in ("skip_unreadable", "cudnn_benchmark")),
        ("page_cache", None, "give text"),
        *(
            ("inject", v, "give STAGE:MILLISECONDS, such as read:20")
            for v in ("sleep:5", "read:x", "read:0")
        ),
        *(
            ("device", v, "cpu, cuda:N")
            for v in ("gpu", "cuda", "cuda:", "cuda:-1", "cuda:x", "CPU", "")
        ),
        *(("device", v, "up to 999") for v in ("cuda:1000", "cuda:" + "9" * 5000)),
        *(("device", v, "simulated:A_MS,B_US") for v in ("simulated", "SIMULATED:1,5")),
        ("device", "simulated:1e99,5", "up to 60,000"),
        ("device", None, "text"),
        *(
            ("seed", v, "whole number from 0 to 4,294,967,295")
            for v in (-1, 2**32, 1.5, True, "x", None)
        ),
        *(("workers", v, "from 0 to 512") for v in (-1, 1.0, True, 100_000)),
        *((f, "no", "true or false") for f in ("compile", "evaluate", "loader_only", "pin_memory")),
        *((f, 1, "true or false") for f in ("compile", "persistent_workers")),
        ("name", "\udcff", "UTF-8"),  # how Python passes on an argument that is not UTF-8
        ("name", None, "text"),
        *(
            ("name", v, "one line, without control characters")
            for v in ("a\nb", "\x1b[2J", "a \u202eb", "a\tb")
        ),
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


def test_a_run_has_one_budget_and_without_any_takes_one_epoch() -> None:
    for asked, budgets in (
        ({}, [1, None, None]),
        ({"steps": 7}, [None, 7, None]),
        ({"seconds": 2}, [None, None, 2]),
    ):
        assert [getattr(RunConfig(**asked), budget) for budget in BUDGETS] == budgets
    for first, second in (("epochs", "steps"), ("epochs", "seconds"), ("steps", "seconds")):
        with pytest.raises(
            ConfigError, match=f"^{second}: 3 is not possible; .* {first} is given already"
        ):
            RunConfig(**{first: 2, second: 3})


def test_every_setting_has_bounds_and_a_help_text_and_every_knob_can_be_left_open() -> None:
    assert {f.name for f in dataclasses.fields(RunConfig)} == {*FIELDS, *BUDGETS}
    fields = {f.name: str(f.type).partition(" | ")[0] for f in dataclasses.fields(RunConfig)}
    assert set(RUN_BOUNDS) == {name for name, kind in fields.items() if kind in ("int", "float")}
    assert all(bounds.whole == (fields[name] == "int") for name, bounds in RUN_BOUNDS.items())
    assert all(bounds.least < bounds.most < math.inf for bounds in RUN_BOUNDS.values())
    fields = {f.name: f for f in dataclasses.fields(RunConfig)}
    assert all(descriptions()[name] for name in fields)
    assert all(fields[knob].default is None for knob in KNOBS + PARTS)
    assert set(CONFIG_COLUMNS) == set(fields) - {"name"}


IMPORTED = """
import json, sys
from vitprof.config import descriptions
files = {name: of.__file__ for name, of in sys.modules.items() if name.partition(".")[0] == "vitprof"}
print(json.dumps([files, descriptions()]))
"""


def test_help_texts_need_no_source(tmp_path: Path) -> None:
    """Where only byte code is installed, every command failed as it began."""

    def imported_from(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
        command = [sys.executable, "-c", IMPORTED]
        ran = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        files, found = json.loads(ran.stdout)
        return files, found

    files, _ = imported_from(ROOT)
    for file in files.values():
        compiled = tmp_path / f"{Path(file).relative_to(ROOT)}c"
        py_compile.compile(file, str(compiled), doraise=True)
    files, found = imported_from(tmp_path)
    assert all(file.endswith(".pyc") for file in files.values())
    assert found == descriptions()


@settings(max_examples=20)
@given(configs)
def test_a_config_survives_the_way_through_json(config: RunConfig) -> None:
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config


def test_configs_of_other_versions() -> None:
    assert RunConfig.from_dict({"name": "two\nlines \x1b[2J"}).name == "two lines \ufffd[2J"
    with pytest.raises(
        ConfigError, match=r"^batchsize: 8 is not possible; there is no such setting$"
    ):
        RunConfig.from_dict({"batchsize": 8})


@pytest.mark.parametrize("field", RUN_BOUNDS)
def test_both_ends_of_the_bounds_are_allowed_and_nothing_beyond(field: str) -> None:
    bounds = RUN_BOUNDS[field]
    kind = int if bounds.whole else float
    for end in (bounds.least, bounds.most):
        assert getattr(RunConfig(**{field: kind(end)}), field) == end
    for beyond in (kind(bounds.least - 1), kind(bounds.most + 1)):
        with pytest.raises(
            ConfigError, match=f"^{field}: .* from {bounds.least:,} to {bounds.most:,}$"
        ):
            RunConfig(**{field: beyond})
