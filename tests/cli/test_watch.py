"""`watch`: a command from its start to the run that is stored, and whatever may be wrong with it."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from tests import ROOT
from tests.cli.json_objects import not_described
from tests.cli.json_objects import told as read_json
from tests.cli.telling import STEPS
from tests.command_line import Call, one_line
from tests.emulator import Terminal
from tests.engine_fixtures import wait_until
from tests.jobs.sending import columns
from tests.watch import scripts
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.worker_use import shared_memory_peak, worker_memory
from vitprof.cli import watch
from vitprof.cli.watch import ADD_EVERY_S, WatchedSoFar
from vitprof.errors import StoreAwayError, StoreError
from vitprof.jobs.command import PRINTED
from vitprof.jobs.supervisor import JobRecorder
from vitprof.program import from_anywhere
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.store import RunStore, StoredRun
from vitprof.store.database import Database

LIMIT_S = 60.0
"""How long a process may take to end on a busy machine."""
N_STEPS = 2 * scripts.N_SAMPLES // scripts.BATCH


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


def the_run() -> StoredRun:
    store = RunStore()
    (run,) = store.runs()
    store.close()
    return run


@pytest.mark.measured
def test_a_script_is_watched_and_ends_as_it_would(
    call: Call, tmp_path: Path, vitprof_home: Path
) -> None:
    """The whole way, through a process that Python starts as it always does."""
    report, shown = tmp_path / "run.json", tmp_path / "shown"
    script = f"exec {sys.executable} -m tests.watch.scripts 4 3 > {shown}"
    status, _, err = call(
        "watch", "--name", "mine", "--json", str(report), "--", "/bin/sh", "-c", script
    )
    assert status == 3, "the script's own"
    losses, foreign = shown.read_text().splitlines()
    err = " ".join(err.split())
    assert len(losses.split()) == 2 * N_STEPS
    assert foreign == "", "what vitprof uses elsewhere is not in the script's process"
    assert "the script ended with exit status 3" in err
    assert "nput-bound. Training on the CPU was stalled" in err
    assert f"Next: {from_anywhere()} tournament --vary workers=" in err
    assert "workers=" in " ".join(call("runs", "1")[1].partition("tournament --vary")[2].split())
    told = read_json("watch", report.read_text())
    assert told["summary"]["n_steps"] == 2 * N_STEPS
    assert not not_described("watch", told)
    run = the_run()
    assert (run.name, run.status, run.config.batch_size, run.config.workers) == (
        "mine",
        "failed",
        scripts.BATCH,
        0,
    )
    assert (run.config.strategy, run.config.dataset, run.config.device) == (
        "own-script",
        "Samples",
        "cpu",
    )
    assert run.facts["command"] == shlex.join(["/bin/sh", "-c", script])
    assert run.verdict is not None
    assert (run.verdict.cause, [phase.name for phase in run.phases].count("evaluate")) == (
        "read",
        4,
    )
    for command in ("code", "headroom"):  # nothing of it can be run from here
        assert "start that again with vitprof watch" in one_line(call, command, "1")


START_METHODS = ("fork", "spawn", "forkserver")
DRAWS_AT_RANDOM = """
import json, random, sys
import numpy, torch
from torch.nn.functional import cross_entropy, dropout
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        noise = torch.randn(4) + numpy.random.rand() + random.random()
        return index + noise, index % 3

def losses_of(start_method):
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    workers = {"num_workers": 2, "multiprocessing_context": start_method}
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, persistent_workers=True, **workers)
    losses = []
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(dropout(x.float())), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
    return losses

if __name__ == "__main__":
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    told = {start_method: losses_of(start_method) for start_method in sys.argv[2:]}
    told["drawn next"] = [torch.rand(1).item(), numpy.random.rand(), random.random()]
    with open(sys.argv[1], "w") as file:
        json.dump(told, file)
"""
"""Shuffles, augments and drops out at random. Writes each loss, to the bit, of a training by each start method, and the
random numbers that come next."""


@pytest.mark.measured
def test_losses_are_the_same_to_the_bit_whatever_starts_the_workers(
    call: Call, mine: RunStore, tmp_path: Path
) -> None:
    """In processes that Python starts: workers by spawn and by forkserver are watched from their own start."""
    script, plain, watched = (tmp_path / name for name in ("train.py", "plain", "watched"))
    script.write_text(DRAWS_AT_RANDOM)
    train = [sys.executable, str(script)]
    subprocess.run([*train, str(plain), *START_METHODS], check=True)
    status, _, err = call("watch", "--", *train, str(watched), *START_METHODS)
    assert status == 0, err
    assert watched.read_bytes() == plain.read_bytes()
    (run,) = mine.runs()
    steps = mine.steps(run.id)
    assert len(steps["step"]) == len(START_METHODS) * 12
    # told by the workers
    assert np.isfinite(steps["read_s"]).all()


def test_a_loop_with_unknown_waits_gets_no_verdict(call: Call, vitprof_home: Path) -> None:
    """No class, no gain and no advice; `check` refuses it before it looks at any figure."""
    facts = {"several_threads_train": True}
    reason = "Several threads of the script train, and vitprof watches one"
    status, _, err = call("watch", "--", *telling(2, facts))
    err = " ".join(err.split())
    assert (status, f"Not measurable here. {reason}" in err) == (0, True), err
    assert "  try " not in err
    assert "headroom" not in err.lower()
    status, out, _ = call("check", "1", "--max-idle", "99%")
    assert status == 2
    assert out.startswith(f"refused    device idle at most 99%: run 1: {reason}")


STAGES = """
import os, sys
shown = open(sys.argv[1], "w", buffering=1)
def note():
    signs = (name.partition(".")[2] for name in os.listdir(os.path.dirname(os.environ["VITPROF_WATCH_SOCKET"])))
    shown.write(" ".join(sorted(filter(None, signs))) + chr(10))
note()
import torch.utils.data
note()
loader = torch.utils.data.DataLoader(range(8))
note()
with torch.no_grad():
    list(loader)
note()
for batch in loader: torch.ones(1, requires_grad=True).sum().backward()
note()
"""
"""Comes nearer to training, and notes the signs after each step, whose words are in tests/jobs/test_unseen.py."""
SIGNS = "python|python torch|loader python torch|batch loader python torch|batch gradients loader python torch"


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (["-c", "pass"], "PyTorch's DataLoader was imported in no process that has vitprof's hook"),
        (["-IB", "-c", "pass"], f"type: vitprof watch -- {sys.executable} -B -c pass"),
        pytest.param(["-c", STAGES, "shown"], "with vitprof.step()", marks=pytest.mark.measured),
    ],
    ids=["no PyTorch", "no hook", "no training"],
)
def test_a_command_that_trains_nothing(
    call: Call,
    python: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vitprof_home: Path,
) -> None:
    """It is said why, with what to type; the run is no failed one."""
    monkeypatch.chdir(tmp_path)
    status, _, err = call("watch", "--steps", "25", "--", sys.executable, *python)
    err = " ".join(err.split())
    assert status == 0
    assert "no training was seen: " in err
    assert words in err
    assert err.endswith("; --steps can't act on it")
    if "shown" in python:
        assert Path("shown").read_text().splitlines() == SIGNS.split("|")
    run = the_run()
    assert (run.status, run.error) == ("done", "")
    assert call("check", "1", "--max-idle", "99%")[0] == 2


def test_said_while_it_runs(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines, shown = list[str](), tmp_path / "shown"

    def say(line: str) -> None:
        lines.append(line)
        shown.touch()

    monkeypatch.setattr(watch, "UNSEEN_AFTER_S", 0.0)
    monkeypatch.setattr(watch, "STATUS_EVERY_S", 0.05)
    monkeypatch.setattr(watch, "_say", say)
    call("watch", "--", "sh", "-c", f"until [ -e '{shown}' ]; do sleep 0.02; done")
    assert lines[0].startswith(
        "after 0 s, no training was seen: Python did not load vitprof's hook"
    )


def test_an_argument_of_many_characters_takes_no_time(call: Call, vitprof_home: Path) -> None:
    assert (
        call("watch", "--", sys.executable, "-c", "import sys; sys.exit(4)", "z" * 90_000)[0] == 4
    )


def test_a_command_that_is_not_there(call: Call, mine: RunStore) -> None:
    status, _, err = call("watch", "--", "no-such-command")
    assert (status, err) == (
        127,
        "vitprof: cannot start no-such-command: No such file or directory\n",
    )
    assert not mine.runs(), "no trace of it"


@pytest.mark.measured
def test_what_workers_use_is_sampled_from_outside(call: Call, vitprof_home: Path) -> None:
    status, *_ = call("watch", "--", sys.executable, "-m", "tests.watch.handing_script")
    assert status == 0
    run = the_run()
    assert run.facts["handed_over"]["storages"] == 8
    assert (run.facts["handed_over"]["start_method"], run.config.workers) == ("fork", 2)
    store = RunStore()
    telemetry = store.telemetry(run.id)
    store.close()
    threads = telemetry["worker_threads"][np.isfinite(telemetry["worker_threads"])]
    assert len(threads) > 5
    assert 2 <= threads.mean() <= 4
    memory = worker_memory(telemetry)
    assert memory is not None
    # A worker that was forked shares nearly all of what it has.
    assert 1e6 < memory.private_bytes < memory.shared_bytes
    assert memory.private_bytes < memory.pss_bytes < memory.private_bytes + memory.shared_bytes
    assert memory.available_bytes > 1e6
    assert shared_memory_peak(telemetry) is not None


NOBODY = """
import os, pwd, runpy, sys
pwd.getpwuid = {}.__getitem__
del os.environ["HOME"], os.environ["VITPROF_HOME"]
runpy.run_module("vitprof", run_name="__main__")
"""
"""Python that runs vitprof as a user without an entry in the list of users."""


@pytest.mark.measured
@pytest.mark.parametrize(
    ("watch", "recorded"),
    [
        ("VITPROF_HOME=$PWD/$BYTES WATCH SCRIPT", False),
        (f"env -u XDG_DATA_HOME {sys.executable} -c '{NOBODY}' watch -- SCRIPT", False),
        ("exec WATCH SCRIPT <&- >&- 2>&-", True),
        ("exec WATCH SCRIPT 2>/dev/full", True),
        (
            "(sleep 0.1; WATCH SCRIPT; echo $? > status) 2>&1 | true; sleep 0.2; exit $(cat status)",
            True,
        ),
        ("mkdir json; COMMAND --json json/x -- sh -c 'rm -r json; exec SCRIPT'", True),
        (
            "TMPDIR=$PWD/$LONG VITPROF_WATCH_STEPS=x VITPROF_WATCH_OVERRIDES={ VITPROF_WATCH_ROOT=/none WATCH SCRIPT",
            True,
        ),
        ("ulimit -f 0; WATCH sh -c 'exit 7'", None),
    ],
)
def test_whatever_is_wrong_the_script_starts_and_its_status_is_its_own(
    watch: str, recorded: bool | None, tmp_path: Path, vitprof_home: Path
) -> None:
    env = {
        **os.environ,
        "LONG": "x" * 132,
        "BYTES": os.fsdecode(b"\xff\xfe"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    (tmp_path / env["LONG"]).mkdir()
    (tmp_path / "script").write_text("#!/bin/sh\necho > started\nexit 7\n")
    (tmp_path / "script").chmod(0o700)
    command = f"{sys.executable} -m vitprof watch"
    words = {"WATCH": f"{command} --", "COMMAND": command, "SCRIPT": str(tmp_path / "script")}
    line = re.sub(r"\b(WATCH|COMMAND|SCRIPT)\b", lambda word: words[word[0]], watch)
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (7, False), done.stderr
    if recorded is not None:
        assert done.stderr.count("vitprof: not watching: ") == (not recorded)
        assert (tmp_path / "started").exists()
        assert (vitprof_home / "recordings.sqlite").exists() is recorded


SHOWS_STREAMS = """
import os, sys
def shown(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return "closed"
streams = [shown(number) for number in range(3)]
print("said", file=sys.stderr)
with open(sys.argv[1], "w") as file:
    print(streams, sys.stderr, file=file)
"""


@pytest.mark.measured
@pytest.mark.parametrize("closed", ["<&- 2>&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_are_so_for_the_script(
    closed: str, tmp_path: Path, vitprof_home: Path
) -> None:
    seen = {}
    for name, before in (("alone", ""), ("watched", f"{sys.executable} -m vitprof watch --")):
        script = shlex.join([sys.executable, "-c", SHOWS_STREAMS, str(tmp_path / name)])
        line = f"exec {before} {script} {closed}"
        done = subprocess.run(["bash", "-c", line], stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0
        seen[name] = (tmp_path / name).read_text()
    assert seen["watched"] == seen["alone"]
    assert "closed" in seen["alone"]


def telling(epochs: int, facts: dict[str, int] | None = None) -> list[str]:
    return [sys.executable, "-m", "tests.cli.telling", str(epochs), json.dumps(facts or {})]


def test_ctrl_c_on_a_terminal_with_its_line(vitprof_home: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "vitprof",
        "watch",
        "--name",
        "mine",
        "--",
        *telling(epochs=300),
    ]
    terminal = Terminal(command, rows=12, columns=100)
    # it has no number before the store has taken it
    shown = b"vitprof run 1: \\d+ steps, 3,200 samples/s, data wait 40%, device idle 40%"
    terminal.read(lambda said: b"epoch 2" in said and re.search(shown, said) is not None)
    assert b"vitprof run: waiting for a training loop over a DataLoader, " in terminal.said
    terminal.press(b"\x03")
    status, (end,) = terminal.end()
    assert status == 130
    run = the_run()
    assert (run.status, run.error) == ("stopped", "")
    assert run.summary is not None
    n = run.summary.n_steps
    assert n >= 3 * STEPS
    lines = [line for line in end.lines if line]
    assert lines[:4] == [f"epoch 0 {'x' * 50}", "batch 2", f"epoch 1 {'x' * 50}", "batch 2"]
    text = "".join(lines)
    assert text.count("interrupted") == 1
    assert text.count("KeyboardInterrupt") == 1, "the script's own traceback"
    assert "Input-bound. Training on the CPU was stalled for data 40% of the time" in text
    based = f"{n - 5:,} steady steps of {n:,}, 3,200 samples/s (95%: 3,200 to 3,200)"
    assert f"  based on {based}, data wait of the loop 40%" in text
    parts = "forward 33%, backward 50%, optimizer 10%, rest 6.7%"
    assert f"  Compute of a step (median 6.00 ms): {parts}" in text
    assert "  transforms: Crop 100%" in text
    assert (end.margins, end.bottom) == (None, "")


def test_progress_in_a_log(call: Call, monkeypatch: pytest.MonkeyPatch, vitprof_home: Path) -> None:
    monkeypatch.setattr("vitprof.cli.common.progress_lines.LINE_EVERY_S", 0.0)
    status, _, err = call("watch", "--", *telling(epochs=1))
    assert status == 0
    lines = [line for line in err.splitlines() if line.startswith("vitprof: still running: run")]
    assert lines
    status, _, err = call("watch", "--quiet", "--", *telling(epochs=1))
    assert (status, err) == (0, "")


def test_quiet(call: Call, monkeypatch: pytest.MonkeyPatch, vitprof_home: Path) -> None:
    monkeypatch.setattr(watch, "status_line", None)
    status, out, err = call("watch", "--quiet", "--", *telling(epochs=1))
    assert (status, out, err, the_run().status) == (0, "", "", "done")


ENDS_WELL = """
import os, pathlib, signal, sys, time
def end(*_):
    open(sys.argv[1], "a").write("saved")
    sys.exit(7)
signal.signal(int(sys.argv[2]), end)
pathlib.Path(sys.argv[1]).touch()
if "tell" in sys.argv:
    os.kill(os.getppid(), int(sys.argv[2]))
while True:  # not signal.pause: a signal that arrives just before it would not end it
    time.sleep(0.01)
"""
"""A script that puts its things in order when this signal comes; it may send that to vitprof itself."""


@pytest.mark.parametrize(("number", "watched"), [(signal.SIGTERM, True), (signal.SIGHUP, False)])
def test_a_signal_to_vitprof_reaches_the_script(
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    watched: bool,
) -> None:
    written = tmp_path / "written"
    if not watched:
        (tmp_path / "file").touch()
        monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "file"))
    status, _, _ = call(
        "watch", "--", sys.executable, "-c", ENDS_WELL, str(written), str(int(number)), "tell"
    )
    assert (status, written.read_text()) == (7, "saved")
    if watched:
        assert the_run().status == "stopped"
    assert signal.getsignal(number) == signal.default_int_handler, "as every command has it"


NOTES_SIGNALS = """
import os, signal, sys, time
def note(number, _):
    with open(sys.argv[1], "a") as file:
        print(int(number), file=file)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGRTMIN + 3):
    signal.signal(number, note)
note(0, None)
while True:  # not signal.pause: a signal that arrives just before it would not end it
    time.sleep(0.01)
"""


@pytest.mark.parametrize("watched", [True, False])
def test_each_signal_reaches_the_script_once_and_none_ends_vitprof_before_it(
    watched: bool, tmp_path: Path, vitprof_home: Path
) -> None:
    noted = tmp_path / "noted"
    noted.touch()
    (tmp_path / "file").touch()
    home = vitprof_home if watched else tmp_path / "file"
    script = [sys.executable, "-c", NOTES_SIGNALS, str(noted)]
    process = subprocess.Popen(
        [sys.executable, "-m", "vitprof", "watch", "--quiet", "--", *script],
        env={**os.environ, "VITPROF_HOME": str(home)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def wait_for(*numbers: int) -> None:
        words = [str(int(number)) for number in numbers]
        wait_until(lambda: noted.read_text().split() == words, f"the signals {words}")

    real_time = signal.SIGRTMIN + 3
    try:
        wait_for(0)
        process.send_signal(signal.SIGUSR1)
        wait_for(0, signal.SIGUSR1)
        os.killpg(process.pid, signal.SIGUSR2)
        wait_for(0, signal.SIGUSR1, signal.SIGUSR2)
        process.send_signal(real_time)
        wait_for(0, signal.SIGUSR1, signal.SIGUSR2, real_time)
        # for this one the script has no handler
        process.send_signal(signal.SIGALRM)
        assert process.wait(LIMIT_S) == 128 + signal.SIGALRM
        assert noted.read_text().split()[-1] == str(real_time)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_signal_before_the_recording_begins_ends_no_waiting(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, ready = JobRecorder.run, tmp_path / "ready"

    def record_late(recorder: JobRecorder) -> None:
        wait_until(ready.exists, "the script's handler")
        os.kill(os.getpid(), signal.SIGTERM)
        record(recorder)

    monkeypatch.setattr(JobRecorder, "run", record_late)
    status, _, _ = call(
        "watch", "--", sys.executable, "-c", ENDS_WELL, str(ready), str(int(signal.SIGTERM))
    )
    assert (status, the_run().status, the_run().error) == (7, "stopped", ""), (
        "it was recorded to its end"
    )


def test_a_store_that_refuses_the_run_ends_no_script(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunStore, "add_new", Mock(side_effect=StoreError("it can only be read")))
    status, _, err = call("watch", "--", sys.executable, "-c", "raise SystemExit(5)")
    assert (status, err) == (5, "vitprof: not watching: it can only be read\n")


@pytest.mark.parametrize("hangs", [False, True])
def test_a_script_does_not_wait_for_a_store_that_cannot_be_used(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    vitprof_home: Path,
    tmp_path: Path,
    hangs: bool,
) -> None:
    """It starts, runs and ends; what is measured is brought into the store by the next command."""
    answers = threading.Event()
    started = tmp_path / "started"
    really_open = Database._open

    def opened(store: Database) -> None:
        if not hangs:
            why = "the server is restarting"
            raise StoreAwayError(f"the run store failed: {why}", why)
        answers.wait(LIMIT_S)
        really_open(store)

    monkeypatch.setattr(Database, "_open", opened)
    monkeypatch.setattr("vitprof.jobs.supervisor.LEAVE_AFTER_S", 0.0)
    monkeypatch.setattr("vitprof.jobs.outbox.OPENING_PATIENCE_S", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, _, err = call("watch", "--", "sh", "-c", f"echo > '{started}'; exit 5")
    assert (status, started.exists()) == (5, True)
    why = "it does not answer" if hangs else "the server is restarting"
    first, *_, last = err.splitlines()
    url = f"sqlite:///{vitprof_home}/recordings.sqlite"
    waits = "what is measured waits for it"
    assert first == f"vitprof: the run store {url} cannot be used now ({why}): {waits}"
    assert last.startswith(
        f"vitprof: the script has ended, but the run store is unavailable ({why}): what it could not"
    )
    monkeypatch.setattr(Database, "_open", really_open)
    answers.set()
    status, _, err = call("runs")
    assert (status, "that waited for the run store" in err) == (0, True)
    run = the_run()
    assert (run.status, run.error) == ("failed", f"the script ended with exit status 5{PRINTED}")


def steps(first: int, n: int = 10, step_s: float = 0.01) -> Series:
    """Steps with 100 samples and 2.5 ms of data wait."""
    known = {
        "step": np.arange(first, first + n),
        "samples": 100,
        "step_s": step_s,
        "data_wait_s": 0.0025,
    }
    return columns(n, **dict.fromkeys(STEP_COLUMNS, 0.0) | known)


def test_figures_follow_the_steps() -> None:
    now = 0.0
    so_far = WatchedSoFar(lambda: now)
    assert so_far.words(3) == "run 3: waiting for a training loop over a DataLoader, 0 s"
    so_far.take(steps(0))
    assert "10 steps, 10,000 samples/s, data wait 25%" in so_far.words(3)
    so_far.take(steps(10, step_s=0.03))
    assert "20 steps, 10,000 samples/s" in so_far.words(3)
    now = ADD_EVERY_S
    so_far.take(steps(20, 1))
    assert "21 steps, 5,000 samples/s" in so_far.words(3), "all but the first step of an epoch"


def test_secrets_of_the_command_are_not_stored(
    call: Call, vitprof_home: Path, mine: RunStore
) -> None:
    status, _, err = call(
        "watch", "--", "/bin/sh", "-c", "exit 3", "--api-key=S3CRET", "--password", "S3CRET"
    )
    assert (status, "S3CRET" in err) == (3, False)
    assert mine.run(1).name == "sh -c 'exit 3' '--api-key=***' --password '***'"
    assert b"S3CRET" not in (vitprof_home / "recordings.sqlite").read_bytes()
