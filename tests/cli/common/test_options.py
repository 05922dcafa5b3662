"""The options of `run`: every setting is one, and a value that cannot be used is one line."""

import dataclasses
import os
from typing import Any

import pytest

from tests.command_line import Call
from vitprof import cli
from vitprof.config import CHOICES, GROUPS, RunConfig
from vitprof.config.strategies import STRATEGIES
from vitprof.errors import VitprofError
from vitprof.home import home

NAMES = ", ".join(STRATEGIES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--strategy", "magic"], f"--strategy magic: choose one of {NAMES}"),
        (["--dataset", "cats"], "--dataset cats: choose one of digits, mnist, photos"),
        (["--batch-size", "0"], "--batch-size 0: give a whole number from 1 to 1,000,000"),
        (["--batch-size", "many"], "--batch-size many: give a whole number from 1 to 1,000,000"),
        (["--seconds", "0"], "--seconds 0.0: give a number from 0.001 to 2,592,000"),
        (["--steps", "5", "--epochs", "1"], "--steps 5: give one budget only, and epochs is given already"),
        (
            ["--device", "tpu"],
            "--device tpu: choose auto, cpu, cuda:N such as cuda:0 (up to 999), simulated:NAME "
            "(rtx4060-laptop, rtx2060-article, a100, h100), or simulated:A_MS,B_US such as simulated:66,70",
        ),
        (
            ["--strategy", "memory", "--workers", "2"],
            "--workers 2: strategy memory does not take it (it takes shuffle)",
        ),
        (["--n-images", "5"], "--n-images 5: digits always has 60000; leave it out"),
        (["--strategy", "two\nlines"], f"--strategy two lines: choose one of {NAMES}"),
        (["--csv", "/no/such/place/x.csv"], "--csv /no/such/place/x.csv: there is no directory /no/such/place"),
        (["--csv", "/"], "--csv /: it is a directory; give a file"),
        (["--csv", os.devnull], f"--csv {os.devnull}: it is a device or a pipe; give a file"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_bad_value_is_one_line(call: Call, args: list[str], complaint: str) -> None:
    assert call("run", *args, "--json") == (2, "", f"vitprof: {complaint}\n")
    assert not home().exists()  # before anything was touched


def test_every_number_that_a_run_takes_is_read_here(call: Call) -> None:
    """So that none is left to Typer, which does not name the value in every version."""
    numbers = [f.name for f in dataclasses.fields(RunConfig) if str(f.type).startswith(("int", "float"))]
    assert {"workers", "prefetch_factor", "cache_mb", "slow_latency_ms", "n_images"} < set(numbers)
    for name in numbers:
        option = "--" + name.replace("_", "-")
        status, _, err = call("run", option, "x7")
        assert status == 2
        assert err.startswith(f"vitprof: {option} x7: give a ")


def test_groups_hold_every_setting_once() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(f.name for f in dataclasses.fields(RunConfig))


def test_help_of_run_names_every_option_in_its_panel(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_every_setting_reaches_the_config(call: Call, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Up to the point where the run would start."""
    seen: list[RunConfig] = []

    def take(config: RunConfig, *, anyway: bool) -> None:
        seen.append(config)
        raise VitprofError("far enough")

    monkeypatch.setattr(cli.run, "_run_job", take)
    field = next(f for f in dataclasses.fields(RunConfig) if f.name == name)
    kind, flag = str(field.type).removesuffix(" | None"), name.replace("_", "-")
    if kind == "bool":
        assert call("run", f"--{flag}")[0] == call("run", f"--no-{flag}")[0] == 1
        assert [getattr(config, name) for config in seen] == [True, False]
    else:
        text, value = VALID.get(name) or OTHER[kind]
        assert call("run", f"--{flag}", text) == (1, "", "vitprof: far enough\n")
        assert getattr(seen[0], name) == value
    others = {f.name: f.default for f in dataclasses.fields(RunConfig) if f.name not in (name, "epochs")}
    assert others == {key: getattr(seen[0], key) for key in others}
