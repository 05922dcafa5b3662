"""The two ways to run a job, with children made for the occasion, and forks of a process with PyTorch loaded."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tests import ROOT
from tests.engine_fixtures import CHEAP, KeptLauncher, gone, vitprof_threads, wait_until
from tests.telemetry.drivers import FIRST, SECOND
from vitprof.config import RunConfig
from vitprof.engine import train
from vitprof.errors import JobError, VitprofError
from vitprof.jobs import child, runners
from vitprof.jobs.command import _watching
from vitprof.jobs.runners import (
    Launcher,
    ProcessRunner,
    ThreadRunner,
    environment,
    start_anew,
    start_runner,
)
from vitprof.measure.wire import Message, Note, read_messages
from vitprof.store.chunks import joined

DONE, STOPPED = ([Note("end", {"status": status, "error": ""})] for status in ("done", "stopped"))
CONFIG = RunConfig(isolation="thread")


def heard(messages: Iterator[Message | None]) -> list[Message]:
    return [message for message in messages if message is not None]


class TestThread:
    @pytest.fixture(autouse=True)
    def _no_thread_is_left(self) -> Iterator[None]:
        yield
        assert "vitprof-job" not in vitprof_threads()

    def run(self, monkeypatch: pytest.MonkeyPatch, job: Any) -> ThreadRunner:
        monkeypatch.setattr(train, "train", job)
        return ThreadRunner(CONFIG)

    def test_messages_and_none_where_there_is_nothing_until_it_is_asked_to_stop(
        self, monkeypatch: Any
    ) -> None:
        def job(config: RunConfig, events: Any, stop: Any) -> bool:
            assert config == CONFIG
            for i in range(1000):
                events.steps({"step": np.array([float(i)])})
            return not wait_until(stop, "a wish to stop")

        runner = self.run(monkeypatch, job)
        assert runner.pid == os.getpid()
        messages = runner.messages()
        steps = itertools.islice((message for message in messages if message is not None), 1000)
        assert [step["step"].tolist() for step in steps] == [[i] for i in range(1000)]
        assert list(itertools.islice(messages, 2)) == [None, None]
        runner.ask_stop()
        assert heard(messages) == STOPPED
        runner.close()

    def test_killed_in_a_loop_of_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started, cleaned = threading.Event(), threading.Event()

        def job(config: RunConfig, events: Any, stop: Any) -> bool:
            try:
                started.set()
                for i in itertools.count():
                    _ = i  # deaf to any wish to stop
            finally:
                cleaned.set()
            return True

        runner = self.run(monkeypatch, job)
        started.wait()
        runner.kill()
        assert heard(runner.messages()) == STOPPED
        assert cleaned.is_set()
        runner.close()
        runner.kill()  # of a thread that has ended

    def test_killed_when_it_had_just_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kill comes in after the job's own handlers; the messages end all the same, and nobody is told."""
        reported, killed = threading.Event(), threading.Event()

        def late(config: RunConfig, buffer: Any, stop: Any) -> None:
            buffer.end("done")
            reported.set()
            while not killed.is_set():
                pass
            for _ in range(10_000):  # where the exception arrives
                pass

        monkeypatch.setattr("vitprof.jobs.child.run_job", late)
        runner = ThreadRunner(CONFIG)
        reported.wait()
        runner.kill()
        killed.set()
        assert heard(runner.messages()) == DONE
        runner.close()

    def test_a_thread_that_ends_without_a_word(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vitprof.jobs.child.run_job", lambda *args: None)
        runner = ThreadRunner(CONFIG)
        assert heard(runner.messages()) == []
        assert "without a last message" in runner.close()


class TestProcess:
    """The child is a shell script here: quick, and able to do what a child never should."""

    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        def begin(script: str) -> ProcessRunner:
            path = tmp_path / "python"
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
            monkeypatch.setattr(sys, "executable", str(path))
            return ProcessRunner(RunConfig(), tmp_path / "log")

        yield begin
        assert not vitprof_threads()

    def test_the_config_comes_in_and_messages_go_out(self, run: Any, tmp_path: Path) -> None:
        frame = r"N\014\000\000\000" + r"[\"facts\",{}]"  # 12 bytes
        runner = run(f'read config; printf "{frame}"; echo "$config" >&2; cat; exit 0')
        first = next(message for message in runner.messages() if message is not None)
        assert first == Note("facts", {})
        runner.ask_stop()
        assert heard(runner.messages()) == []
        assert "exit status 0" in runner.close()
        assert '"strategy": "per-sample"' in (tmp_path / "log").read_text()

    def test_an_end_without_a_last_message_is_said_though_a_worker_lives(
        self, run: Any, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        runner = run("sleep 1000 & echo first >&2; echo 'the last line' >&2; exit 3")
        assert heard(runner.messages()) == []
        assert (
            runner.close()
            == f"the job's process ended with exit status 3: the last line; its log is {log}"
        )
        log.unlink()
        runner = run("read config; exec sleep 1000")
        assert next(runner.messages()) is None
        os.kill(runner.pid, signal.SIGSEGV)
        assert heard(runner.messages()) == []
        assert runner.close() == f"the job's process was ended by SIGSEGV; its log is {log}"

    def test_a_link_in_place_of_its_log_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "log").symlink_to(tmp_path / "somebody's")
        with pytest.raises(VitprofError, match="log cannot be written: it is a link"):
            ProcessRunner(CONFIG, tmp_path / "log", start=lambda log: pytest.fail("it was started"))
        assert not (tmp_path / "somebody's").exists()

    def test_what_is_no_message_ends_it(self, run: Any) -> None:
        """Else the pipe would fill up and the job wait for ever."""
        runner = run("while :; do echo 'this is no frame'; done")
        assert heard(runner.messages()) == []
        why = runner.close()
        assert why.startswith(
            "the job's process was ended because it sent something that is not a message"
        )
        assert "\n" not in why

    def test_kill_ends_one_that_ignores_everything_and_its_workers_too(self, run: Any) -> None:
        runner = run(
            "trap '' TERM INT HUP; sleep 1000 & sleep 1000 & read config; while :; do wait; done"
        )
        workers = wait_until(
            lambda: len(c := psutil.Process(runner.pid).children()) == 2 and c, "its workers"
        )
        runner.ask_stop()
        assert list(itertools.islice(runner.messages(), 2)) == [None, None]
        runner.kill()
        assert heard(runner.messages()) == []
        said = "the job's process was ended by SIGKILL: (not by the kernel for memory|the system may).*; the job held "
        assert re.match(said, runner.close())
        assert gone(workers)
        runner.kill()  # of nobody


def test_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(
        JobError, match=r"^the job's process could not be started: .*No such file"
    ) as caught:
        start_runner(RunConfig(), tmp_path / "log", Launcher(), threading.Event())
    assert "\n" not in str(caught.value)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no fork server on this system")
QUICK: dict[str, Any] = CHEAP | {"strategy": "memory", "steps": 6, "evaluate": False}


def answers(process: Any, **values: Any) -> Iterator[Message]:
    """What the process says when it is given this config."""
    process.stdin.write(json.dumps(RunConfig(**(QUICK | values)).to_dict()).encode() + b"\n")
    process.stdin.flush()
    return read_messages(process.stdout)


def run(process: Any, **values: Any) -> list[Message]:
    """What is said by one that ends well."""
    messages = list(answers(process, **values))
    assert process.wait() == process.poll() == 0
    end(process)
    return messages


def losses(messages: list[Message]) -> np.ndarray[Any, Any]:
    return joined("steps", [m for m in messages if not isinstance(m, Note)], ["loss"])["loss"]


def end(process: Any) -> int:
    """Closes its pipes; how it ended."""
    process.stdin.close()
    process.stdout.close()
    return int(process.wait())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with (tmp_path / "log").open("wb") as file:
        yield file


@pytest.fixture
def own() -> Iterator[Launcher]:
    """A launcher of the test's own, cold."""
    made = Launcher()
    yield made
    made.close()


SLEEPS = "GOMP_SPINCOUNT = '0'"
KEEP_AND_ASK = """
import os, sys
os.dup2(os.open({shown!r}, os.O_CREAT | os.O_WRONLY), 2)
import torch
from vitprof.jobs import child
work = child.work
def ask_and_work():
    print("bad fork:", torch.cuda._is_in_bad_fork(), file=sys.stderr, flush=True)
    work()
child.work = ask_and_work
child.main()
"""
"""A warm process that keeps what OpenMP shows of itself, and whose jobs ask PyTorch whether they may use CUDA."""


@pytest.fixture
def server_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a script in the place of the fork server: quick, and able to do what that never should."""

    def put(script: str) -> None:
        path = tmp_path / "server"
        path.write_text(f"#!{sys.executable}\nimport os, socket, sys, time\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("VITPROF_WARM", "1")
        monkeypatch.setattr(runners, "command", lambda module, *args: [str(path), *args])

    return put


SAY_READY = "s = socket.socket(fileno=int(sys.argv[1])); s.send(b'{\"ready\": true}')"


SERVER = """
import json
connection = socket.socket(fileno=int(sys.argv[1]))
def answer(**values):
    connection.send(json.dumps(values).encode())
def asked():
    message, files, *_ = socket.recv_fds(connection, 99999, 9)
    return json.loads(message)["number"]
def held_up():
    open({go_on!r}).read()
answer(ready=True)
"""
"""A server of nothing that is held up until the test writes into a pipe. Its jobs have numbers that no process has."""
ANSWERS_LATE = """
number = asked()
held_up()
answer(number=number, pid=4_000_001)
answer(number=asked(), pid=4_000_002)
answer(ended=4_000_002, code=7)
asked()
"""
ANSWERS_ONCE = """
answer(number=asked(), pid=4_000_001)
asked()
held_up()
answer(ended=4_000_001, code=7)
asked()
"""


@pytest.mark.usefixtures("full_home")
class TestForked:
    @pytest.mark.measured
    def test_it_trains_as_a_new_one(
        self, launcher: KeptLauncher, log: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the variables of now: its data lie in the home of this test, which the server does not know. The threads
        of OpenMP sleep in a new process too."""
        forked = losses(run(launcher.start(log)))
        monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
        anew = losses(run(start_anew(log)))
        assert len(forked) == 6
        np.testing.assert_array_equal(forked, anew)
        assert SLEEPS in Path(log.name).read_text()

    def test_it_has_the_directory_of_now_a_session_and_a_log_of_its_own_and_signals_are_told(
        self, launcher: KeptLauncher, log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        first, second = launcher.start(log), launcher.start(log)
        for process in (first, second):
            job = psutil.Process(process.pid)
            assert (job.cwd(), os.getsid(job.pid), process.poll()) == (str(tmp_path), job.pid, None)
        assert end(first) == 1  # without a config
        assert (tmp_path / "log").read_text().count("is started by vitprof itself") == 1
        os.kill(second.pid, signal.SIGTERM)
        assert end(second) == second.poll() == -signal.SIGTERM

    @pytest.mark.measured
    def test_workers_are_its_own_children_however_they_start(
        self, launcher: KeptLauncher, log: Any
    ) -> None:
        """A job forked by multiprocessing's own server would share it, and get brothers."""
        process = launcher.start(log)
        job = psutil.Process(process.pid)
        endless = {"strategy": "workers", "storage": "memory", "workers": 2, "steps": 100_000}
        messages = answers(process, **endless, start_method="forkserver")
        first = next(message for message in messages if not isinstance(message, Note))
        assert len(first["step"]) > 0
        assert [len(child.children()) for child in job.children() if child.children()] == [2], (
            "of its own server"
        )
        process.stdin.close()
        assert list(messages)[-1:] == STOPPED
        assert end(process) == 0

    @pytest.mark.parametrize(("mask", "mine"), [(None, FIRST), (f"{FIRST},{SECOND}", SECOND)])
    def test_cuda_starts_in_the_job_alone_and_sees_one_gpu(
        self,
        launcher: KeptLauncher,
        cuda_driver: Path | None,
        log: Any,
        monkeypatch: Any,
        mask: str | None,
        mine: str,
    ) -> None:
        """The stand-in for its driver writes down who asked, and under which mask: not the process that all jobs are
        forked from, else it could not start in them."""
        if cuda_driver is None:
            pytest.skip("no C compiler for the stand-in")
        calls = cuda_driver / "log"
        monkeypatch.setenv("LD_LIBRARY_PATH", str(cuda_driver))
        monkeypatch.setenv("CUDA_STUB_LOG", str(calls))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if mask is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        process = launcher.start(log)
        server = psutil.Process(process.pid).ppid()
        (end,) = [
            m for m in run(process, device="cuda:1") if isinstance(m, Note) and m.kind == "end"
        ]
        name = {FIRST: "Stub GPU 0", SECOND: "Stub GPU 1"}[mine]
        unseen = f"device cuda:1: PyTorch {torch.__version__}: it sees no GPU, and the driver lists {name} ("
        assert end.values["error"].startswith(unseen)  # a stand-in goes no further
        asked = [line.split() for line in calls.read_text().splitlines()]
        assert {mask for _, pid, mask in asked if int(pid) == process.pid} == {mine}
        assert str(server) not in {pid for _, pid, _ in asked}


class TestServer:
    @pytest.mark.parametrize("name", runners.OPENMP_CHOICES)
    def test_what_the_user_chose_is_kept(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """GNU's OpenMP, which PyTorch's wheels for Linux have, writes how its threads wait when it is loaded."""
        assert environment().items() >= runners.OPENMP_SLEEPS.items()
        assert not _watching(os.environ, "socket").keys() & runners.OPENMP_SLEEPS.keys(), (
            "a script waits as ever"
        )
        monkeypatch.setenv(name, "mine")
        now = environment()
        assert now[name] == "mine"
        assert not now.keys() & (runners.OPENMP_SLEEPS.keys() - {name})

    def test_nothing_is_kept_unwanted_or_without_memory(
        self, own: Launcher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert own.warm() is own  # VITPROF_WARM=0 in tests
        assert not runners.wanted()
        assert own._server is None
        own.wait(threading.Event())
        monkeypatch.setenv("VITPROF_WARM", "1")
        assert runners.wanted()
        monkeypatch.setattr(runners, "FREE_BYTES", 1 << 60)
        assert not runners.wanted()

    def test_a_stop_ends_waiting_for_it(self, own: Launcher, server_of_nothing: Any) -> None:
        server_of_nothing("time.sleep(1000)")
        own.warm()
        stop = threading.Event()
        stop.set()
        own.wait(stop)

    @pytest.mark.parametrize(
        "script",
        [
            "sys.exit(1)",  # it could not be loaded
            SAY_READY + "; s.recv(9999)",  # it died when it was asked
            SAY_READY
            + '; s.recv(9999); s.send(b\'{"number": 0, "pid": 0}\'); s.recv(9999)',  # the system has no process left
            SAY_READY + "; time.sleep(1000)",  # it hangs
        ],
    )
    def test_one_that_cannot_fork_costs_nobody_his_job(
        self,
        own: Launcher,
        server_of_nothing: Any,
        script: str,
        log: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        server_of_nothing(script)
        monkeypatch.setattr(runners, "ANSWER_S", 0.5)
        own.warm().wait(threading.Event())
        for _ in range(2):
            process = own.start(log)
            assert isinstance(process, subprocess.Popen)
            process.kill()
            end(process)

    def test_a_late_answer_is_not_taken_for_another_ones_and_the_server_forks_again(
        self,
        own: Launcher,
        server_of_nothing: Any,
        log: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        server_of_nothing(SERVER.format(go_on=str(tmp_path / "go on")) + ANSWERS_LATE)
        os.mkfifo(tmp_path / "go on")
        own.warm().wait(threading.Event())
        server = own._server
        assert server is not None
        with monkeypatch.context() as patch:
            patch.setattr(runners, "ANSWER_S", 0.01)
            patch.setattr(runners, "start_anew", lambda log: "from scratch")
            assert own.start(log) == "from scratch"
        assert (server.ready, server.is_lost) == (False, True)
        (tmp_path / "go on").write_text("answer")
        wait_until(lambda: server.ready, "the late answer")
        own.wait(threading.Event())
        assert own._server is server, "it is there again"
        process = own.start(log)
        assert process.pid == 4_000_002
        assert end(process) == 7

    def test_one_that_does_not_answer_is_replaced_and_tells_how_its_jobs_end(
        self,
        own: Launcher,
        server_of_nothing: Any,
        log: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        server_of_nothing(SERVER.format(go_on=str(tmp_path / "go on")) + ANSWERS_ONCE)
        os.mkfifo(tmp_path / "go on")
        own.warm().wait(threading.Event())
        first = own._server
        assert first is not None
        job = own.start(log)
        with monkeypatch.context() as patch:
            patch.setattr(runners, "ANSWER_S", 0.01)
            patch.setattr(runners, "start_anew", lambda log: "from scratch")
            assert own.start(log) == "from scratch"
        own.wait(threading.Event())
        assert own._server not in (first, None)
        assert own._replaced == [first]
        (tmp_path / "go on").write_text("tell")
        assert end(job) == 7
        own.wait(threading.Event())
        assert own._replaced == []

    def test_one_that_died_is_replaced_a_few_times(
        self, own: Launcher, server_of_nothing: Any
    ) -> None:
        server_of_nothing(SAY_READY)
        own.warm()
        seen = []
        for _ in range(runners.MOST_RENEWED + 2):
            server = own._server
            assert server is not None
            seen.append(server)
            wait_until(lambda server=server: server.is_lost, "its end")
            own.wait(threading.Event())
        # looked at before each wait: one that ends while it is waited for is not replaced twice
        assert len(set(seen)) == 1 + runners.MOST_RENEWED

    def test_nothing_is_forked_for_a_request_that_was_given_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(child.os, "fork", lambda: pytest.fail("it forks"))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            stdin, config = os.pipe()
            os.close(config)
            assert not child._forks(theirs, {"number": 3}, [stdin])
            os.close(stdin)
            assert json.loads(ours.recv(999)) == {"number": 3, "pid": 0}

    @pytest.mark.measured
    def test_a_job_may_use_cuda_has_threads_that_sleep_and_goes_on_when_its_server_dies(
        self,
        own: Launcher,
        log: Any,
        tmp_path: Path,
        full_home: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Where its parent called something of CUDA, `torch.cuda.init` refuses to run."""
        monkeypatch.setenv("VITPROF_WARM", "1")
        monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
        script = KEEP_AND_ASK.format(shown=str(tmp_path / "shown"))
        monkeypatch.setattr(
            runners, "command", lambda module, *args: [sys.executable, "-c", script, *args]
        )
        own.warm().wait(threading.Event())
        assert own._server is not None
        process = own._server.fork(log)
        server: Any = psutil.Process(process.pid).parent()
        server.kill()
        assert gone([server])
        assert process.poll() is None
        assert list(answers(process))[-1:] == DONE
        assert end(process) == runners.UNKNOWN
        assert "bad fork: False\n" in Path(log.name).read_text()
        assert SLEEPS in (tmp_path / "shown").read_text()

    @pytest.mark.measured
    def test_nothing_is_left_of_it_when_its_owner_is_killed(self) -> None:
        script = """
import sys, threading
from vitprof.jobs.runners import Launcher
launcher = Launcher().warm()
launcher.wait(threading.Event())
job = launcher.start(open(sys.argv[1], "wb"))
print(job.pid, flush=True)
threading.Event().wait()
"""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "VITPROF_WARM": "1"}
        command = [sys.executable, "-c", script, os.devnull]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) as owner:
            assert owner.stdout is not None
            job = psutil.Process(int(owner.stdout.readline()))
            server = job.parent()
            assert server is not None
            owner.kill()
        assert gone([job, server])
