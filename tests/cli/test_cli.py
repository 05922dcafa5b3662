"""The command line as a whole: usage, help, and what goes wrong outside of any command."""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import typer

from tests import ROOT
from tests.cli.stored_runs import add
from tests.command_line import Call, one_line, succeeds
from vitprof import cli
from vitprof.__main__ import main
from vitprof.config import RunConfig
from vitprof.config.strategies import STRATEGIES
from vitprof.home import home
from vitprof.names import MARK
from vitprof.store import RunQuery, RunStore
from vitprof.store.tournaments import list_tournaments


def nothing_was_begun() -> bool:
    if not home().exists():
        return True
    with closing(RunStore()) as store:
        return not store.count_runs(RunQuery(helpers=True)) and not list_tournaments(store)


VARY = "--vary workers=0,2 --vary prefetch_factor=4"
SCRIPT = "-- python -c pass"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --xyzzy", "No such option: --xyzzy. See 'python -m vitprof run --help'"),
        (
            "run --batch-size",
            "Option '--batch-size' requires an argument. See 'python -m vitprof run --help'",
        ),
        ("run --json=yes", "Option '--json' does not take a value"),
        ("run spare", "Got unexpected extra argument"),
        (
            "run --json --strategy magic",
            f"--strategy magic: choose one of {', '.join(STRATEGIES)}\n",
        ),
        ("run --strategy 'two\nlines'", "--strategy two lines: choose one of per-sample"),
        ("run --batch-size 0", "--batch-size 0: give a whole number from 1 to 1,000,000"),
        ("run --batch-size many", "--batch-size many: give a whole number from 1 to 1,000,000"),
        ("run --seconds 0", "--seconds 0.0: give a number from 0.001 to 2,592,000"),
        (
            "run --steps 5 --epochs 1",
            "--steps 5: give one budget only, and epochs is given already",
        ),
        (
            "run --strategy memory --workers 2",
            "--workers 2: strategy memory does not take it (it takes shuffle)",
        ),
        ("run --n-images 5", "--n-images 5: digits always has 60000; leave it out"),
        (
            "run --csv /no/such/place/x.csv",
            "--csv /no/such/place/x.csv: there is no directory /no/such/place",
        ),
        ("run --csv /dev/null", "--csv /dev/null: it is a device or a pipe; give a file"),
        ("frobnicate", "No such command 'frobnicate'. See 'python -m vitprof --help'"),
        ("export 1 --format xml", "--format xml: choose one of csv, steps-csv, parquet"),
        ("export 1 --format parquet", "--format parquet: a terminal cannot show it; give --output"),
        ("export 1 --csv x.csv --output y", "--csv x.csv: it names file and format"),
        ("export 1 --output /no/such/x", "--output /no/such/x: there is no directory /no/such"),
        ("export --csv x.csv", "Missing argument 'RUN'"),
        ("bundle 1 -o /", "--output /: it is a directory; give a file"),
        ("delete 1e3", "RUN 1e3: give a whole number"),
        ("runs first", "RUN first: give a whole number"),
        ("runs --limit 0", "--limit 0: give a whole number from 1 to 2,147,483,647"),
        (
            "runs --sort size",
            "--sort size: choose one of id, name, strategy, samples_per_s, idle_frac, device_idle_frac",
        ),
        (
            "runs --status nope",
            "--status nope: choose one of queued, running, done, stopped, failed, interrupted",
        ),
        (
            "selftest --gpu --quick",
            "--quick: there is no quick form of selftest --gpu; leave one of the two out",
        ),
        ("tournament", "--strategies : give some"),
        ("tournament --strategies nonsense", "--strategies nonsense: choose one of"),
        ("tournament --strategies memory --batch-sizes ,", "--batch-sizes ,: give numbers"),
        ("tournament --strategies memory --workers 8..0", "--workers 8..0: 8..0 ends before it"),
        (
            "tournament --strategies workers --vary workers=0..512",
            "--vary workers=0..512: 0..512 makes 513 numbers, and 100 are allowed: give a larger step, as",
        ),
        (
            "tournament --strategies workers --vary decode_cache=ram",
            "--vary decode_cache=ram: give NAME=VALUE,VALUE; names are workers",
        ),
        (
            "tournament --in-place --vary in_order=off -- python train.py",
            "--vary in_order=off: batches then come in another order than the sampler's, so the losses may",
        ),
        (
            "tournament --strategies workers --workers 0,2 --vary workers=0,2",
            "--workers 0,2: --vary workers= is given too; leave one out",
        ),
        (
            "tournament --strategies workers --vary workers=0,2 --vary workers=4",
            "--vary workers=4: give workers once, with all its values",
        ),
        (
            "tournament --strategies memory --vary prefetch_factor=2,4",
            "--vary prefetch_factor: no strategy of this tournament takes it: memory",
        ),
        ("tournament --strategies memory --repeats many", "--repeats many: give a whole number"),
        ("tournament --strategies memory --baseline it", "--baseline it: there is no such trial"),
        ("tournament --resume 1 --repeats 3", "No such option: --repeats"),
        (
            "tournament --resume",
            "Missing argument 'ID'. See 'python -m vitprof tournament resume --help'",
        ),
        ("tournament resume first", "ID first: give a whole number"),
        ("tournament --steps 5 script -- true", "--steps 5: give it after script"),
        ("tournament --more-rounds 3", "No such option: --more-rounds"),
        ("tournament --strategies memory --nodes 2", "--nodes 2: it goes with --on"),
        ("tournament --strategies memory --nodes 0", "--nodes 0: it goes with --on"),
        (
            "tournament --strategies memory --on local --nodes 2",
            "--nodes 2: --on local is this machine alone; leave it out",
        ),
        *[
            (
                f"tournament {line}--slurm partition=gpu",
                "--slurm partition=gpu: it goes with --on slurm",
            )
            for line in (
                "--strategies memory ",
                "--strategies memory --on local ",
                "--strategies memory --on ray ",
                "--resume 1 ",
                "--resume 1 --on local ",
            )
        ],
        ("tournament --strategies memory --slurm ''", "--slurm : it goes with --on slurm"),
        (
            "tournament --strategies memory --on local --anyway",
            "--anyway: a node runs its rounds one after another; leave it or --on out",
        ),
        (
            "tournament --strategies memory --on local --time 90",
            "--time 90.0: nodes keep no time limit together; give --repeats, or leave --on out",
        ),
        (
            "tournament --strategies memory --on local --early-stop",
            "--early-stop: nodes cut no setting short",
        ),
        (
            "tournament --strategies memory --json --markdown",
            "--markdown: --json prints one object and nothing else",
        ),
        (
            "tournament --list --strategies memory",
            "--strategies memory: it does nothing with --list; leave one of the two out",
        ),
        ("run --strategy memory --least-steps 9 --steps 9", "--least-steps 9: it goes with --sec"),
        ("tournament --strategies memory --least-steps 9 --steps 9", "--least-steps 9: it goes"),
        ("convert --to memmap --out new --samples 50 -- true", "--samples 50: it goes with --plan"),
        ("convert --to memmap --out new --json -- true", "--json: it goes with --plan"),
        (
            "convert --to memmap --out new --until-decided -- true",
            "--until-decided: it goes with --plan",
        ),
        ("convert --plan --out new -- true", "--out new: it goes with --to FORM"),
        ("export 1 --steps --format html", "--steps: it goes with csv, parquet and json"),
        ("code --force", "--force: it goes with --output"),
        ("runs 1 --tag good", "--tag good: it is for the list; run 1 alone is shown"),
        ("runs 1 --sort id", "--sort id: it is for the list; run 1 alone is shown"),
        ("metrics --textfile a.prom --host 0.0.0.0", "--host 0.0.0.0: it goes with --port"),
        ("headroom 1 --repeats 0 --anyway", "--anyway: nothing is run with --repeats 0"),
        ("tournament --strategies memory --on ray --nodes 0", "--nodes 0: give at least 1"),
        (
            "tournament --strategies memory --on slurm --slurm gpu",
            "--slurm gpu: give NAME=VALUE, such as partition=gpu",
        ),
        ("tournament --auto --strategies memory", "No such option: --auto"),
        ("tournament --vary workers=0,2", "--strategies : give some"),
        (f"tournament {SCRIPT}", "--vary : name arguments of the script's DataLoader to try"),
        (f"tournament --vary speed=1 {SCRIPT}", "--vary speed=1: give NAME=VALUE,VALUE"),
        (
            f"tournament {VARY} --strategies memory {SCRIPT}",
            "No such option: --strategies (Possible options: --steps). See 'python -m vitprof tournament script",
        ),
        (
            f"tournament {VARY} --time 10m {SCRIPT}",
            "--time 10m: give seconds, or such as 90s, 10min or 2h",
        ),
        ("watch", ""),
        (
            f"watch --json /no/such/folder/run.json {SCRIPT}",
            "--json /no/such/folder/run.json: there is no directory",
        ),
        (f"watch --headroom --causal {SCRIPT}", "--headroom and --causal: "),
        (f"watch --steps 24 {SCRIPT}", "--steps 24: give 25 or more: the first 5 are its warm-up"),
    ],
)
def test_what_cannot_be_understood_is_one_line_and_begins_nothing(
    call: Call, line: str, said: str
) -> None:
    assert one_line(call, *shlex.split(line)).startswith(f"vitprof: {said}")
    assert nothing_was_begun()


MUCH = "99999999999999999999"
"""Beyond all use."""
ECHO = ("--", sys.executable, "-c", "print('begun')")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--workers", MUCH),
        ("run", "--lr", "1e300"),
        ("watch", "--steps", MUCH, *ECHO),
        ("watch", "--steps", "0", *ECHO),
        ("watch", "--detach-after", MUCH, *ECHO),
        ("runs", "--limit", MUCH),
        ("runs", "--page", "0"),
        ("runs", "--text", "a" * 100_000),
        ("runs", "--text", "a b " * 25_000),
        ("runs", *(f"--tag={n}" for n in range(101))),
        ("check", "1", "--max-idle", "1e400%"),
        ("check", "1", "--max-idle", MUCH),
        ("check", "1", "--min-samples-per-s", "1e300"),
        ("check", "1", "--against", "1", "--max-slowdown", "101%"),
        ("headroom", "1", "--repeats", MUCH),
        ("strategies", "--n-images", MUCH),
        ("tournament", "--strategies", "memory", "--time", "1e300"),
        *[
            ("tournament", "--strategies", "memory", f"--{name}", value)
            for name in ("repeats", "time", "batch-sizes", "workers")
            for value in (
                MUCH,
                "1000000000000",
                *([f"1,{MUCH}"] if name in ("batch-sizes", "workers") else []),
            )
        ],
        (
            "tournament",
            "--strategies",
            "memory",
            "--batch-sizes",
            ",".join(map(str, range(1, 5000))),
        ),
        ("tournament", "--vary", f"workers={MUCH}", *ECHO),
        ("tournament", "--vary", "workers=" + ",".join(map(str, range(5000))), *ECHO),
        ("--port", MUCH),
        ("open", "--port", MUCH),
        ("run", "--name", "\x1b[2J"),
        ("watch", "--name", "\u202ered", *ECHO),
        ("tournament", "--name", "two\nlines", "--strategies", "memory"),
        ("x" * 100_000,),
    ],
    ids=lambda arguments: " ".join(arguments)[:40].encode("ascii", "backslashreplace").decode(),
)
def test_what_no_run_needs_is_one_short_line(call: Call, arguments: tuple[str, ...]) -> None:
    err = one_line(call, *arguments)
    assert len(err) < 1_100
    assert err.removesuffix("\n").isprintable()
    assert nothing_was_begun()


def test_what_an_older_version_stored_does_nothing_to_a_terminal(
    call: Call, mine: RunStore
) -> None:
    run = add(mine)
    mine.update_run(run, name="a\nb \x1b[2J\u202ec", error="\x1b]0;title\a", notices=["bell\a"])
    for arguments in (("runs",), ("runs", str(run))):
        out = succeeds(call, *arguments)
        assert f"a b {MARK}[2J{MARK}c" in out
        assert all(c.isprintable() for c in out.replace("\n", ""))
    assert call("runs", "--json")[1].isascii()


def test_home_that_cannot_be_written_to(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "file"))
    for args in (
        ["runs"],
        ["run", "--strategy", "memory"],
        ["run", "--strategy", "memory", "--json"],
    ):
        err = one_line(call, *args, status=1)
        assert err.startswith(f"vitprof: cannot write to {tmp_path / 'file'}: ")
        assert err.endswith("set VITPROF_HOME to a directory that can be written to\n")


def test_help_has_three_groups_and_begins_with_what_a_first_day_needs(call: Call) -> None:
    status, out, err = call("--help")
    assert (status, err) == (0, "")
    headings = re.findall(r"─ ([A-Z][a-z ]+) ─", out)
    assert headings == ["Options", "Measure", "Look and export", "Set up and verify"]
    listed = re.findall(r"^│ ([a-z]+) ", out, re.MULTILINE)
    assert listed[:4] == ["watch", "tournament", "run", "demo"]
    assert sorted(listed) == sorted(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]


def test_interrupted_where_nothing_runs(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunStore, "count_runs", Mock(side_effect=KeyboardInterrupt))
    assert call("runs") == (130, "", "vitprof: interrupted\n")


def test_a_terminal_that_cannot_show_a_character(
    mine: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine.create_run(RunConfig(name="50 µs"))
    shown = io.BytesIO()
    monkeypatch.setattr(
        sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True)
    )
    monkeypatch.setattr(sys, "argv", ["vitprof", "runs"])
    cli.main()
    assert rb"50 \xb5s" in shown.getvalue()


PRINTING = (
    "--version",
    "--help",
    "runs --help",
    "runs",
    "runs --json",
    "strategies",
    "strategies --json",
    "schema",
    "datasets list",
    "export 1",
    "export 1 --format json",
    "check 1 --max-idle 5%",
)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes standard output a full disk, or a pipe whose reader has ended."""
    opened = []

    def refuse(how: str) -> None:
        if how == "full":
            stream = open("/dev/full", "w")  # noqa: SIM115
        else:
            reading, writing = os.pipe()
            os.close(reading)
            stream = os.fdopen(writing, "w")
        opened.append(stream)
        monkeypatch.setattr(sys, "stdout", stream)

    yield refuse
    for stream in opened:
        with suppress(OSError):
            stream.close()


@pytest.mark.parametrize("line", PRINTING)
def test_a_full_disk_as_standard_output_is_one_line(
    call: Call, refusing: Callable[[str], None], mine: RunStore, line: str
) -> None:
    add(mine)
    refusing("full")
    status, _, err = call(*line.split())
    said = "vitprof: standard output cannot be written: No space left on device\n"
    assert (status, err) == (2, said)


@pytest.mark.parametrize("line", PRINTING)
def test_a_reader_that_has_ended_is_no_error(
    call: Call, refusing: Callable[[str], None], mine: RunStore, line: str
) -> None:
    add(mine)
    refusing("pipe")
    status, _, err = call(*line.split())
    assert (status, err) == (141, "")


def test_a_closed_standard_output_is_one_line(
    call: Call, mine: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    said = "vitprof: standard output cannot be written: it is closed\n"
    assert call("runs")[::2] == (2, said)


def test_what_standard_error_does_not_take_changes_no_status(
    call: Call, mine: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with suppress(OSError), open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert call("run", "--xyzzy")[0] == 2


def test_a_reader_that_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "vitprof", "strategies", "--json"]
    with os.fdopen(writing) as gone:
        ended = subprocess.run(command, check=False, stdout=gone, stderr=subprocess.PIPE, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_full_disk_leaves_nothing_for_the_end_of_python() -> None:
    command = [sys.executable, "-m", "vitprof", "strategies", "--json"]
    with suppress(OSError), open("/dev/full", "w") as full:
        ended = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, cwd=ROOT)
    said = b"vitprof: standard output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (2, said)


def test_ctrl_c_during_the_imports_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, *_: object) -> None:
        if name == "vitprof.cli":
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=interrupted), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "vitprof.cli", raising=False)
    monkeypatch.delattr("vitprof.cli", raising=False)
    with pytest.raises(SystemExit, match=r"^130$"):
        main()
