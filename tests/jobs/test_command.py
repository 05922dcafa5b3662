"""A command as a job: how it is started, stopped and ended, without anything that trains."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import ROOT
from tests.jobs.test_left_behind import DAEMON
from vitprof.config.own_script import own_config
from vitprof.config.script_decoders import TriedDecoder
from vitprof.errors import JobError
from vitprof.jobs import command
from vitprof.jobs.command import CommandRunner, TrialCommand, TrialRunner
from vitprof.jobs.killed_jobs import MemoryWitness
from vitprof.jobs.left_behind import LeftBehind
from vitprof.jobs.supervisor import JobRecorder
from vitprof.measure.wire import Message, Note
from vitprof.store import RunStore, StoredRun

SLEEPS = "import sys, time; print('on', flush=True); time.sleep(60)"


def recorded(
    store: RunStore, name: str, start: Callable[[], CommandRunner], **more: Any
) -> StoredRun:
    run_id = store.create_run(own_config(name, **more))
    JobRecorder(store, run_id, threading.Event(), start=start).run()
    return store.run(run_id)


@pytest.mark.parametrize(
    ("source", "status", "error"),
    [
        ("pass", "done", ""),
        (
            "raise SystemExit(7)",
            "failed",
            "the script ended with exit status 7; what it printed says why",
        ),
        (
            "raise OSError('no\\nroom')",
            "failed",
            "the script ended with exit status 1: OSError: no",
        ),
        (
            "import os; os.kill(os.getpid(), 9)",
            "failed",
            "the script ended with SIGKILL: not by the kernel, in this test",
        ),
        (
            "a = RuntimeError('DataLoader worker (pid 5) is killed by signal: Killed. ')\n"
            "raise RuntimeError('DataLoader worker (pid(s) 5) exited unexpectedly') from a",
            "failed",
            "the script ended with exit status 1: RuntimeError: DataLoader worker (pid 5) is killed "
            "by signal: Killed. That is SIGKILL: not by the kernel, in this test",
        ),
        (
            "raise RuntimeError('DataLoader worker (pid 5) is killed by signal: Aborted. ')",
            "failed",
            "the script ended with exit status 1: RuntimeError: DataLoader worker (pid 5) is killed "
            "by signal: Aborted. That is SIGABRT",
        ),
        (
            "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)",
            "stopped",
            "",
        ),
    ],
)
def test_how_a_script_ends_is_how_its_run_does(
    store: RunStore, source: str, status: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "not by the kernel, in this test"
    monkeypatch.setattr(MemoryWitness, "script_words", lambda _: words)
    run = recorded(store, "a script", lambda: CommandRunner([sys.executable, "-c", source]))
    assert (run.status, run.error) == (status, error)


@pytest.mark.parametrize(
    ("ends", "partly"),
    [
        ("", False),
        ("os._exit(0)", True),
        ("os._exit(3)", False),
        ("os.closerange(3, 99); wait(); os._exit(3)", True),
    ],
)
def test_partly_watched(
    store: RunStore, tmp_path: Path, ends: str, partly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that runs on without its connection waits until that was noticed; others end at once."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(command, "LOST_AFTER_S", 0.0 if "wait()" in ends else 60.0)
    noticed = tmp_path / "noticed"

    class Noticing(CommandRunner):
        def _passed_on(self, message: Message | None) -> Message | None:
            if message is None:
                noticed.touch()
            return super()._passed_on(message)

    source = f"""
import os, time
from tests.jobs.sending import columns, waiting, watched
def wait():
    while not os.path.exists({str(noticed)!r}):
        time.sleep(0.01)
with watched() as send:
    send(columns(50, step=range(50), epoch=0, samples=4, **waiting(0.0, 0.001, 0.1)))
    {ends}
"""
    run = recorded(store, "a script", lambda: Noticing([sys.executable, "-c", source]))
    assert ("partly_watched" in run.facts) is partly
    assert partly or not run.notices
    assert run.verdict is not None
    assert (
        run.verdict.sentence.startswith("Partly watched. Watching ended after 50 steps") is partly
    )
    assert not (partly and run.verdict.advice)


@pytest.mark.parametrize(("others", "who"), [(1, "another process"), (2, "2 other processes")])
def test_of_several_the_first_counts(
    store: RunStore, others: int, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    source = f"""
from tests.jobs.sending import columns, waiting, watched
for n in [50] + {others} * [70]:
    with watched() as send:
        send(columns(n, step=range(n), epoch=0, samples=4, **waiting(0.0, 0.001, 0.1)))
"""
    run = recorded(store, "a script", lambda: CommandRunner([sys.executable, "-c", source]))
    line = f"{who} of the command trained, too: this is the run of the first one"
    assert (run.status, run.notices) == ("done", (line,))
    assert len(store.steps(run.id)["step"]) == 50


@pytest.mark.parametrize("ignores", [False, True])
def test_asked_to_end_and_ended_if_it_does_not(
    ignores: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "STOP_GRACE_S", 0.2 if ignores else 60.0)
    ignoring = (
        f"import signal; signal.signal({int(signal.SIGTERM)}, signal.SIG_IGN); " if ignores else ""
    )
    runner = CommandRunner([sys.executable, "-c", ignoring + SLEEPS])
    runner.kill()
    assert runner.returncode is None, (
        "nobody asked: the script goes on, whatever happens to vitprof"
    )
    out, last = "", None
    for message in runner.messages():
        out += capfd.readouterr().out
        if isinstance(message, Note):
            last = message
        elif out:
            if runner._stop_by is None:
                runner.ask_stop()
            runner.kill()
    runner.close()
    assert runner.returncode == -(signal.SIGKILL if ignores else signal.SIGTERM)
    assert last == Note("end", {"status": "stopped", "error": ""})


def test_a_trial_that_was_stopped_early_does_not_say_that_no_training_was_seen(
    tmp_path: Path,
) -> None:
    """A tournament's limit of time stops a script before it has made a DataLoader: it need not be changed."""
    stopped = a_trial(tmp_path, command=(sys.executable, "-c", SLEEPS))
    notices = []
    for make in (
        lambda: TrialRunner(stopped, tmp_path / "log"),
        lambda: CommandRunner(stopped.command, stdout=subprocess.DEVNULL),
    ):
        runner = make()
        runner.ask_stop()
        messages = [message for message in runner.messages() if isinstance(message, Note)]
        runner.close()
        assert messages[-1] == Note("end", {"status": "stopped", "error": ""})
        notices.append([note for note in messages if note.kind == "notice"])
    of_trial, of_watch = notices
    assert not of_trial
    assert len(of_watch) == 1, "who watched it by hand wants to know"


def test_ctrl_c_is_a_stop_however_the_script_ends(capfd: pytest.CaptureFixture[str]) -> None:
    """The terminal sends it to both; it does not arrive twice."""
    source = f"""
import signal, sys, time
interrupted, ended = [], []
signal.signal({int(signal.SIGINT)}, lambda *_: interrupted.append(1))
signal.signal({int(signal.SIGTERM)}, lambda *_: ended.append(1))
print("on", flush=True)
while not ended:  # not signal.pause: a signal that arrives just before it would not end it
    time.sleep(0.01)
print(len(interrupted), flush=True)
raise SystemExit(1)
"""
    runner = CommandRunner([sys.executable, "-c", source])
    said, last = "", None
    for message in runner.messages():
        said += capfd.readouterr().out
        if said and not runner._end_requested:
            runner.signalled(signal.SIGINT, to_group=True)
            assert not runner.stopping
            runner._process.terminate()  # something else ends it
        last = message
    runner.close()
    assert (said + capfd.readouterr().out).split() == ["on", "0"]
    assert last == Note("end", {"status": "stopped", "error": ""})


def test_another_sitecustomize_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = "import sys; print(sorted(m for m in sys.modules if m.startswith('vitprof')))"
    CommandRunner([sys.executable, "-c", source]).finish()
    ours = [
        "vitprof",
        "vitprof.watch",
        "vitprof.watch.install",
        "vitprof.watch.patching",
        "vitprof.watch.rank_identity",
    ]
    assert capfd.readouterr().out.splitlines() == ["the other one", str(ours)]


Run = Callable[..., StoredRun]


def a_trial(folder: Path, *words: str, **more: object) -> TrialCommand:
    command = (sys.executable, "-m", "tests.jobs.pretend", *words)
    known = {
        "command": command,
        "directory": str(folder),
        "number": 3,
        "steps": 40,
        "arguments": {},
    }
    return TrialCommand(**(known | more))  # type: ignore[arg-type]


@pytest.fixture
def run(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs and records a trial of the pretended script."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run_trial(*words: str, changes: list[str] | None = None, **more: object) -> StoredRun:
        made = a_trial(tmp_path, *words, **more)
        return recorded(
            store, "a trial", lambda: TrialRunner(made, tmp_path / "log", changes), steps=40
        )

    return run_trial


def test_what_is_measured_and_what_it_was_given(run: Run, store: RunStore, tmp_path: Path) -> None:
    changes: list[str] = []
    ended = run("writes", changes=changes, lists_changes=True)
    assert (ended.status, ended.error, ended.config.batch_size, ended.config.workers) == (
        "done",
        "",
        8,
        0,
    )
    assert (store.n_steps(ended.id), (tmp_path / "model.pt").read_text()) == (40, "of trial 3")
    assert "model.pt" in changes


def test_the_setting_is_in_the_runs_config_or_fails_where_it_was_not_applied(run: Run) -> None:
    given = {"num_workers": 2, "prefetch_factor": 4, "pin_memory": True}
    ended = run(arguments=given, place="there", remarks=("read this",))
    assert ended.notices == ("read this",)
    config = ended.config
    assert (ended.status, config.workers, config.prefetch_factor, config.pin_memory) == (
        "done",
        2,
        4,
        True,
    )
    ended = run("elsewhere", arguments={"num_workers": 2}, place="there", where="train.py:5")
    assert ended.status == "failed"
    assert ended.error.startswith(
        "the setting was not applied to the loader that trains: the first trial's loader"
    )
    assert ended.error.endswith("was made at train.py:5, this one's at train.py:7")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"packs": True},
        {"as_uint8": True},
        {"sharing_strategy": "file_system"},
        {"worker_threads": 2},
        {"stored": {"n": 1}},
    ],
)
def test_what_a_trial_changes_is_told_to_its_processes(changed: dict[str, Any]) -> None:
    trial = TrialCommand(("python", "train.py"), "/work", 1, 40, {}, "there", **changed)
    assert trial.changes == bool(changed)
    told = json.loads(trial.variables["VITPROF_WATCH_OVERRIDES"])
    assert {name: told[name] for name in changed} == changed
    assert bool(told) == bool(changed)


def by_opencv(*, allows_other_pixels: bool = False) -> TriedDecoder:
    return TriedDecoder("opencv", 3, 7, allows_other_pixels)


def test_a_decoder_is_told_to_a_trials_processes() -> None:
    trial = TrialCommand(("python", "train.py"), "/work", 1, 40, {}, "there", decoder=by_opencv())
    assert trial.changes
    told = json.loads(trial.variables["VITPROF_WATCH_OVERRIDES"])["decoder"]
    assert told == {"name": "opencv", "package": "opencv-python-headless", "first": 3}


def test_the_same_pixels_are_a_fact_and_steps_that_compare_are_warm_up(
    run: Run, store: RunStore
) -> None:
    ended = run("decodes", decoder=by_opencv(), place="there")
    assert (ended.status, ended.error) == ("done", "")
    assert ended.facts["decoded"] == {
        "decoded": 9,
        "stayed": 2,
        "why": "its mode is L",
        "compared": 4,
        "differ": 0,
        "largest": 0,
    }
    assert store.steps(ended.id)["warmup"].tolist() == [1] * 7 + [0] * 33


def test_other_pixels_are_refused_unless_the_user_allows_them(run: Run) -> None:
    refused = run("decodes", "other pixels", decoder=by_opencv(), place="there")
    assert refused.status == "failed"
    assert refused.error == (
        "decoder=opencv gives other pixels, which differ by up to 3 of 255 from Pillow's in 2 of the 4 JPEG files "
        "compared so far, so the losses are not the script's: add --allow-other-pixels, or leave it out"
    )
    decoder = by_opencv(allows_other_pixels=True)
    allowed = run("decodes", "other pixels", decoder=decoder, place="there")
    assert (allowed.status, allowed.facts["decoded"]["largest"]) == ("done", 3)


def test_a_decoder_that_decodes_nothing_is_no_setting(run: Run) -> None:
    for words in ((), ("short",)):
        ended = run(*words, decoder=by_opencv(), place="there")
        assert ended.status == "failed"
        assert ended.error == (
            "decoder=opencv decoded nothing, so this is the unchanged script: it opened no JPEG file with Pillow "
            "while it was watched (torchvision.io and cv2 are left as they are)"
        )


def test_what_changes_nothing_of_a_batch_is_no_setting(run: Run) -> None:
    ended = run("crosses as ever", as_uint8=True, place="there")
    assert (ended.status, ended.error) == ("failed", "uint8=on changes nothing")
    other = run("crosses as ever", arguments={"num_workers": 2}, place="there")
    assert other.status == "done", "it was not asked for"


def test_the_first_reason_for_which_a_trial_ends_stays(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report may be read before what the process says of its loader: the trial then failed with SIGTERM."""
    check = TrialRunner._check

    def check_later(self: TrialRunner, watched: Any) -> None:
        self._check_reports()
        check(self, watched)

    monkeypatch.setattr(TrialRunner, "_check", check_later)
    ended = run("crosses as ever", as_uint8=True, place="there")
    assert (ended.status, ended.error) == ("failed", "uint8=on changes nothing")


def test_a_script_that_fails_says_why_and_where_it_is_told(run: Run, tmp_path: Path) -> None:
    ended = run("fails", arguments={"num_workers": 2}, place="there")
    why = f"the script ended with exit status 1: ValueError: not with workers; its log is {tmp_path / 'log'}"
    assert (ended.status, ended.error) == ("failed", why)


def test_what_cannot_be_done_in_a_layer_names_the_way_around_it(run: Run) -> None:
    fails = {"command": (sys.executable, "-c", "import os; raise OSError(18, os.strerror(18))")}
    why = "OSError: [Errno 18] Invalid cross-device link (in a layer that cannot be done: begin anew with --in-place)"
    in_layer = run(isolation="layer", **fails).error
    assert why in in_layer or "no layer could be put over" in in_layer
    assert "--in-place" not in run(**fails).error


def test_an_early_end_and_the_epoch_that_fills_the_cache(run: Run, store: RunStore) -> None:
    ended = run("short", cache_bytes=1000, place="there")
    assert (ended.status, ended.notices) == (
        "done",
        ("the script ended by itself after 20 of 40 steps",),
    )
    assert store.steps(ended.id)["warmup"].tolist() == [1] * 10 + [0] * 10


@pytest.mark.parametrize("isolation", ["copy", ""])
def test_a_script_that_resumes_from_an_earlier_trials_file_is_told_which(
    isolation: str, run: Run, tmp_path: Path
) -> None:
    """A checkpoint outside of the folder stays: later trials found no step to train."""
    (tmp_path / "elsewhere").mkdir()
    checkpoint, other = tmp_path / "elsewhere" / "last.pt", tmp_path / "elsewhere" / "index.npy"
    folder = tmp_path / "folder"
    folder.mkdir()
    how: dict[str, Any] = {"directory": str(folder), "isolation": isolation}
    resumes = f"open({str(other)!r}).close(); open({str(checkpoint)!r}).close()"
    how["command"] = (sys.executable, "-c", resumes)
    for path in (checkpoint, other):
        path.touch()
    ended = run(lasting=(str(other), str(checkpoint)), **how)
    read = (
        f"the script read {checkpoint}, which an earlier trial wrote, and seems to resume from it"
    )
    to_do = "move it away, and have the script "
    to_do += f"write it below {folder}, where nothing stays" if isolation else "begin anew"
    assert ended.error.startswith(f"no training was seen: {read}: {to_do}")
    how["command"] = (sys.executable, "-c", "pass")
    ended = run(lasting=(str(other), str(checkpoint)), **how)
    may = f"no training was seen: the script may resume from {checkpoint}, which an earlier trial"
    assert ended.error.startswith(may)
    assert "an earlier trial" not in run(**how).error


def test_an_early_end_names_what_was_read_of_an_earlier_trial(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    (line,) = run("short", "reads", lasting=(str(tmp_path / "model.pt"),)).notices
    assert line.endswith("model.pt, which an earlier trial wrote, and may go on from there")
    (line,) = run("short", lasting=(str(tmp_path / "model.pt"),)).notices
    assert line == "the script ended by itself after 20 of 40 steps"


def test_what_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(JobError, match="cannot start no-such-command: No such file or directory"):
        CommandRunner(["no-such-command"])
    with pytest.raises(JobError, match=r"cannot start .*: No such file or directory \(.*/gone\)"):
        TrialRunner(a_trial(tmp_path / "gone"), tmp_path / "log")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("asked", [True, False])
def test_it_ends_with_all_its_processes(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked to stop, or left by whoever followed it: other than a script that is only watched."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    child = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    source = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    runner = TrialRunner(
        a_trial(tmp_path, command=(sys.executable, "-c", source)), tmp_path / "log"
    )
    for _ in runner.messages():
        if (tmp_path / "log").read_text() == "on\n":
            break
    below = psutil.Process(runner.pid).children(recursive=True)
    assert len(below) == 1
    if asked:
        runner.ask_stop()
    runner.close()
    assert runner.returncode == -15
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive
    assert not Path(runner._reports).exists()
    assert os.path.exists(tmp_path / "log")


def test_a_daemon_ends_with_its_trial_and_what_cannot_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(command=(sys.executable, "-c", DAEMON))
    assert not psutil.pid_exists(int((tmp_path / "log").read_text()))
    monkeypatch.setattr(LeftBehind, "end", lambda self: ["process 7 (it)"])
    ended = run("short")
    line = "the trial started process 7 (it), which could not be ended: end it yourself"
    assert line in ended.notices
