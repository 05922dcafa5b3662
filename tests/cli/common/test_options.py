"""The options of `run`: every setting is one."""

import dataclasses
from typing import Any
from unittest.mock import Mock

import pytest

from tests.command_line import Call
from vitprof import cli
from vitprof.cli.common import options
from vitprof.config import CHOICES, GROUPS, RunConfig
from vitprof.datasets.own import registry
from vitprof.errors import VitprofError


def test_every_number_that_a_run_takes_is_read_here(call: Call) -> None:
    """So that none is left to Typer, which does not name the value in every version."""
    numbers = [
        f.name for f in dataclasses.fields(RunConfig) if str(f.type).startswith(("int", "float"))
    ]
    assert {"workers", "prefetch_factor", "cache_mb", "slow_latency_ms", "n_images"} < set(numbers)
    for name in numbers:
        option = "--" + name.replace("_", "-")
        status, _, err = call("run", option, "x7")
        assert status == 2
        assert err.startswith(f"vitprof: {option} x7: give a ")


def test_groups_hold_every_setting_once() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(f.name for f in dataclasses.fields(RunConfig))


def test_help_of_run_names_every_option_in_its_panel(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    out = call("run", "--help")[1]
    for panel, names in GROUPS.items():
        section = out.partition(f"{panel} ─")[2].partition("╰")[0]
        assert all("--" + name.replace("_", "-") in section for name in names), panel


OTHER: dict[str, tuple[str, Any]] = {"int": ("7", 7), "float": ("7.5", 7.5), "str": ("x", "x")}
VALID: dict[str, tuple[str, Any]] = {
    "inject": ("read:5", "read:5"),
    "device": ("cpu", "cpu"),
    **{name: (values[-1], values[-1]) for name, values in CHOICES.items()},
}


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(RunConfig)])
def test_every_setting_reaches_the_config(
    call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Up to the point where the run would start."""
    run = Mock(side_effect=VitprofError("far enough"))
    monkeypatch.setattr(cli.run, "_run_job", run)
    field = next(f for f in dataclasses.fields(RunConfig) if f.name == name)
    kind, flag = str(field.type).removesuffix(" | None"), name.replace("_", "-")
    if kind == "bool":
        assert call("run", f"--{flag}")[0] == call("run", f"--no-{flag}")[0] == 1
        values = [True, False]
    else:
        text, value = VALID.get(name) or OTHER[kind]
        values = [value]
        assert call("run", f"--{flag}", text) == (1, "", "vitprof: far enough\n")
    configs = [called.args[0] for called in run.call_args_list]
    assert [getattr(config, name) for config in configs] == values
    others = {
        f.name: f.default for f in dataclasses.fields(RunConfig) if f.name not in (name, "epochs")
    }
    assert others == {key: getattr(configs[0], key) for key in others}


def test_making_the_commands_asks_nothing_of_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on a drive that does not answer, and `watch` starts its script all the same."""
    monkeypatch.setattr(registry, "path", Mock(side_effect=AssertionError))
    for name in (name for names in GROUPS.values() for name in names):
        options.option(name)
