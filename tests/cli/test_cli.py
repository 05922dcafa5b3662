"""The command line: values that cannot be used, and the commands that need no run."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.command_line import Call
from vitprof import cli
from vitprof.config import CHOICES, GROUPS, RunConfig
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.parts import STORAGES
from vitprof.config.strategies import STRATEGIES
from vitprof.errors import VitprofError
from vitprof.home import home
from vitprof.jobs import preflight
from vitprof.jobs.preflight import Check
from vitprof.store import RunStore

NAMES = ", ".join(STRATEGIES)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--strategy", "magic"], f"--strategy magic: choose one of {NAMES}"),
        (["--dataset", "cats"], "--dataset cats: choose one of digits, mnist, photos"),
        (["--model", "huge"], "--model huge: choose one of tiny, ti/16, s/16, b/16"),
        (["--batch-size", "0"], "--batch-size 0: give a whole number from 1 to 1,000,000"),
        (["--batch-size", "-3"], "--batch-size -3: give a whole number from 1 to 1,000,000"),
        (["--batch-size", "60001"], "--batch-size 60001: the training set of digits has 60000 samples"),
        (["--batch-size", "many"], "--batch-size many: give a whole number from 1 to 1,000,000"),
        (["--batch-size", "1.5"], "--batch-size 1.5: give a whole number from 1 to 1,000,000"),
        (["--batch-size", ""], "--batch-size : give a whole number from 1 to 1,000,000"),
        (["--image-size", "30"], "--image-size 30: tiny cuts images into 7 px patches; give a multiple"),
        (
            ["--model", "ti/16", "--image-size", "28"],
            "--image-size 28: ti/16 cuts images into 16 px patches; give a multiple",
        ),
        (["--epochs", "0"], "--epochs 0: give a whole number from 1 to 1,000,000"),
        (["--steps", "ten"], "--steps ten: give a whole number from 1 to 100,000,000"),
        (["--seconds", "0"], "--seconds 0.0: give a number from 0.001 to 2,592,000"),
        (["--seconds", "nan"], "--seconds nan: give a number from 0.001 to 2,592,000"),
        (["--seconds", "soon"], "--seconds soon: give a number from 0.001 to 2,592,000"),
        (["--steps", "5", "--epochs", "1"], "--steps 5: give one budget only, and epochs is given already"),
        (
            ["--device", "tpu"],
            "--device tpu: choose auto, cpu, cuda:N such as cuda:0 (up to 999), simulated:rtx2060-article, "
            "or simulated:A_MS,B_US such as simulated:66,70",
        ),
        (
            ["--device", "simulated:x"],
            "--device simulated:x: choose simulated:rtx2060-article, or give milliseconds for each step (up to "
            "60,000) and microseconds for each sample (up to 1,000,000), such as simulated:66,70",
        ),
        (
            ["--inject", "sleep:5"],
            "--inject sleep:5: give STAGE:MILLISECONDS, such as read:20; stages are read, decode, transform, collate, "
            "transfer, from 0.001 to 60000 ms",
        ),
        (["--precision", "fp8"], "--precision fp8: choose one of fp32, bf16"),
        (["--isolation", "vm"], "--isolation vm: choose one of process, thread"),
        (
            ["--strategy", "memory", "--workers", "2"],
            "--workers 2: strategy memory does not take it (it takes shuffle)",
        ),
        (
            ["--strategy", "workers", "--prefetch-factor", "0"],
            "--prefetch-factor 0: give a whole number from 1 to 1,000",
        ),
        (["--lr", "-1"], "--lr -1.0: give a number from 1e-12 to 1,000"),
        (["--seed", "-1"], "--seed -1: give a whole number from 0 to 4,294,967,295"),
        (["--threads", "-1"], "--threads -1: give a whole number from 0 to 1,024"),
        (["--warmup-steps", "x"], "--warmup-steps x: give a whole number from 0 to 1,000,000"),
        (["--telemetry-hz", "0"], "--telemetry-hz 0.0: give a number from 0.01 to 50"),
        (["--name", "x" * 201], f"--name {'x' * 20}...: give at most 200 characters"),
        (["--storage", "tape"], f"--storage tape: choose one of {', '.join(STORAGES)}"),
        (
            ["--strategy", "hdf5", "--loader", "threads"],
            "--loader threads: it cannot read storage hdf5; choose one of dataloader, batches, ahead, generator",
        ),
        (["--strategy", "slow-drive", "--slow-mb-s", "0"], "--slow-mb-s 0.0: give a number from 0.1 to 1,000,000"),
        (["--page-cache", "hot"], "--page-cache hot: choose one of as-is, warm, cold"),
        (["--n-images", "5"], "--n-images 5: digits always has 60000; leave it out"),
        (["--strategy", "two\nlines"], f"--strategy two lines: choose one of {NAMES}"),
        (["--csv", "/no/such/place/x.csv"], "--csv /no/such/place/x.csv: there is no directory /no/such/place"),
        (["--csv", "/"], "--csv /: it is a directory; give a file"),
        (["--csv", os.devnull], f"--csv {os.devnull}: it is a device or a pipe; give a file"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("as_json", [False, True], ids=["", "json"])
def test_a_bad_value_is_one_line(call: Call, args: list[str], complaint: str, as_json: bool) -> None:
    assert call("run", *args, *(["--json"] if as_json else [])) == (2, "", f"vitprof: {complaint}\n")
    assert not home().exists()  # before anything was touched


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["run", "--no-such-thing"], "--no-such-thing"),
        (["run", "--batch-size"], "Option '--batch-size' requires an argument"),
        (["run", "--json=yes"], "Option '--json' does not take a value"),
        (["run", "spare"], "extra argument"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["export", "1", "--format", "xml"], "--format xml: choose one of csv, steps-csv, parquet"),
        (["export", "1", "--format", "parquet"], "--format parquet: it is no text for a terminal; give --output"),
        (["export", "1", "--csv", "x.csv", "--output", "y"], "--csv x.csv: it names file and format"),
        (["export", "1", "--output", "/no/such/x"], "--output /no/such/x: there is no directory /no/such"),
        (["export", "--csv", "x.csv"], "Missing argument 'RUN'"),
        (["export", "first", "--csv", "x.csv"], "RUN first: give a whole number, as `runs` lists them"),
        (["export", "1", "--csv", "/no/such/x.csv"], "--csv /no/such/x.csv: there is no directory /no/such"),
        (["delete"], "Missing argument 'RUN'"),
        (["delete", "1e3"], "RUN 1e3: give a whole number"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_understood_is_one_line(call: Call, args: list[str], named: str) -> None:
    status, out, err = call(*args)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err


def test_every_number_that_a_run_takes_is_read_here(call: Call) -> None:
    """So that none is left to Typer, which does not name the value in every version."""
    numbers = [f.name for f in dataclasses.fields(RunConfig) if str(f.type).startswith(("int", "float"))]
    assert {"workers", "prefetch_factor", "cache_mb", "slow_latency_ms", "n_images"} < set(numbers)
    for name in numbers:
        option = "--" + name.replace("_", "-")
        status, _, err = call("run", option, "x7")
        assert status == 2
        assert err.startswith(f"vitprof: {option} x7: give a ")


@pytest.mark.parametrize("command", [["run"], ["tournament", "--strategies", "memory"]])
def test_a_number_that_nothing_could_count_to_is_refused(call: Call, command: list[str]) -> None:
    """1,000,000,000,000 steps of warm-up once hung the verdict, and whatever opened the store afterwards."""
    not_shared = () if command == ["run"] else ("batch_size", "workers")
    for name, bounds in RUN_BOUNDS.items():
        if name in not_shared:
            continue
        option = "--" + name.replace("_", "-")
        status, out, err = call(*command, option, "1000000000000")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"vitprof: {option} 1000000000000")
        assert f"; {bounds.allowed}" in err or f": {bounds.allowed}" in err


@pytest.mark.parametrize(
    "args",
    [
        ["--batch-sizes", "32,1000000000000"],
        ["--workers", "0,1000000000000"],
        ["--repeats", "1000000000000"],
        ["--time", "1000000000000"],
        ["--batch-sizes", ",".join(str(n) for n in range(1, 5000))],
        ["--auto", "--time", "1000000000000"],
        ["--auto", "--batch-sizes", ",".join(str(n) for n in range(1, 5000))],
    ],
    ids=lambda args: " ".join(args)[:40],
)
def test_a_tournament_that_would_never_end_is_refused(call: Call, args: list[str]) -> None:
    status, out, err = call("tournament", "--strategies", "memory", *args)
    assert (status, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("args", [[], ["--help"], ["run", "--help"], ["export", "--help"]])
def test_help(call: Call, args: list[str]) -> None:
    status, out, err = call(*args)
    assert (status, err) == (0, "")
    assert "Usage: python -m vitprof" in out


def test_strategies(call: Call) -> None:
    status, out, err = call("strategies")
    assert (status, err) == (0, "")
    assert all(name in out for name in STRATEGIES)
    status, out, err = call("strategies", "--json")
    assert (status, err) == (0, "")
    listed = json.loads(out)
    assert listed["schema_version"] == 1
    assert [s["name"] for s in listed["strategies"]] == list(STRATEGIES)
    assert {"storage", "location", "loader", "transfer", "what", "when", "costs", "origin", "defaults"} <= listed[
        "strategies"
    ][0].keys()


def test_strategies_says_what_can_run_here_for_the_data_set(call: Call) -> None:
    listed = json.loads(call("strategies", "--json")[1])["strategies"]
    dali = next(s for s in listed if s["name"] == "dali")
    assert (dali["available"], dali["availability"]) == (False, "bad")
    assert dali["reason"] == "it cannot load digits; choose the data set photos"
    assert dali["reason"] in call("strategies")[1]
    photos = json.loads(call("strategies", "--dataset", "photos", "--n-images", "50", "--json")[1])
    assert photos["dataset"] == "photos"
    assert {s["name"]: s["storage"] for s in photos["strategies"]}["lmdb"] == "lmdb-encoded"
    assert all(s["availability"] in ("ok", "note", "bad") for s in photos["strategies"])


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--dataset", "cats"], "--dataset cats: choose one of digits, mnist, photos"),
        (["--n-images", "x"], "--n-images x: give a whole number from 1 to 10,000,000"),
        (["--n-images", "5"], "--n-images 5: digits always has 60000; leave it out"),
        (["--dataset", "photos", "--n-images", "0"], "--n-images 0: give a whole number from 1 to 10,000,000"),
    ],
)
def test_strategies_with_a_bad_value(call: Call, args: list[str], complaint: str) -> None:
    assert call("strategies", *args) == (2, "", f"vitprof: {complaint}\n")


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

    def take(config: RunConfig) -> None:
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


class TestStore:
    def test_empty(self, call: Call) -> None:
        status, out, err = call("runs")
        assert (status, err) == (0, "")
        assert "no runs yet" in out
        assert json.loads(call("runs", "--json")[1]) == {"schema_version": 1, "runs": []}

    @pytest.mark.parametrize("args", [["delete", "7"], ["export", "7", "--csv", "{}/x.csv"]])
    @pytest.mark.parametrize("run", ["7", "99999999999999999999"])
    def test_no_such_run(self, call: Call, args: list[str], run: str, tmp_path: Path) -> None:
        status, out, err = call(*(a.replace("7", run).format(tmp_path) for a in args))
        assert (status, out, err) == (1, "", f"vitprof: there is no run {run}; python -m vitprof runs lists them\n")
        assert not (tmp_path / "x.csv").exists()

    def test_a_name_is_shown_as_it_is(self, call: Call) -> None:
        """Brackets are no markup, colons no emoji, and a short line stays one."""
        name = "[/oops] :dog: [red] " + "long " * 30
        store = RunStore()
        store.create_run(RunConfig(name=name))
        store.close()
        status, out, err = call("runs")
        assert (status, err) == (0, "")
        assert name in out

    def test_a_run_whose_program_is_gone_is_not_shown_as_running(self, call: Call) -> None:
        imports = "from vitprof.config import RunConfig; from vitprof.store import RunStore"
        script = f"{imports}; RunStore().create_run(RunConfig())"
        root = str(ROOT)
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": root})
        (run,) = json.loads(call("runs", "--json")[1])["runs"]
        assert run["status"] == "interrupted"
        assert call("delete", "1") == (0, "", "")
        assert json.loads(call("runs", "--json")[1])["runs"] == []

    def test_one_that_goes_on_is_not_deleted(self, call: Call) -> None:
        store = RunStore()
        run_id = store.create_run(RunConfig())
        store.close()
        status, _, err = call("delete", str(run_id))
        assert (status, err) == (1, f"vitprof: run {run_id} is still going on; stop it first\n")

    def test_home_that_cannot_be_written_to(self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "file"))
        for args in (["runs"], ["run", "--strategy", "memory"], ["run", "--strategy", "memory", "--json"]):
            status, out, err = call(*args)
            assert (status, out) == (1, "")
            assert err.startswith(f"vitprof: cannot write to {tmp_path / 'file'}: ")
            assert err.endswith("set VITPROF_HOME to a directory that can be written to\n")
            assert err.count("\n") == 1

    def test_home_on_a_read_only_place(self, call: Call, read_only_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VITPROF_HOME", str(read_only_dir / "home"))
        status, out, err = call("run", "--strategy", "memory")
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"vitprof: cannot write to {read_only_dir / 'home'}: Permission denied; set VITPROF_HOME")
        assert list(read_only_dir.iterdir()) == []

    def test_a_database_that_is_none(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VITPROF_DB", "nonsense")
        status, out, err = call("runs")
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert "VITPROF_DB" in err


class TestDoctor:
    def test_each_thing_has_a_verdict(self, call: Call) -> None:
        status, out, _ = call("doctor")
        checks = list(preflight.examine())
        assert status == any(check.verdict == "bad" for check in checks)
        assert {c.what for c in checks} >= {"packages", "PyTorch", "NVML", "shared memory", "disk", "database"}
        assert all(check.what in out and check.verdict in out for check in checks)

    def test_bad_news_is_exit_status_1(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        checks = [Check("disk", "/a/[b]/c", "ok", ""), Check("database", "cannot be [/used]", "bad", "move it away")]
        monkeypatch.setattr(preflight, "examine", lambda: iter(checks))
        status, out, err = call("doctor")
        assert (status, err) == (1, "")
        assert all(text in out for text in ("/a/[b]/c", "cannot be [/used]", "bad: move it away"))


def test_interrupted_where_nothing_runs(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunStore, "runs", interrupted)
    assert call("runs") == (130, "", "vitprof: interrupted\n")


def test_a_terminal_that_cannot_show_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore()
    store.create_run(RunConfig(name="50 µs"))
    store.close()
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    monkeypatch.setattr(sys, "argv", ["vitprof", "runs"])
    cli.main()
    assert rb"50 \xb5s" in shown.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_reader_that_has_gone() -> None:
    root = str(ROOT)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as gone:
        ended = subprocess.run(
            [sys.executable, "-m", "vitprof", "strategies", "--json"],
            check=False,
            stdout=gone,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": root},
        )
    assert (ended.returncode, ended.stderr) == (1, b"")
