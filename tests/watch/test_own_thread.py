"""A thread that the script cannot see: in `threading`, by its signals, on its standard error."""

import signal
import threading
from unittest.mock import Mock

import pytest

from tests.forking import exit_status_of, fork_doing
from tests.watch.watching import LIMIT_S, Host
from vitprof.watch.own_thread import ERRORS_OF_CODE, OwnThread, native_ids


@pytest.fixture(scope="module")
def host(host: Host) -> Host:
    return host.running("tests.watch.touchy_scripts")


@pytest.mark.parametrize(
    ("script", "saw"),
    [
        ("joins_all_threads", "MainThread 1"),
        ("joins_all_threads_in_a_fork", "1"),
        ("asks_for_the_thread_wherever_garbage_is_collected", "True ['MainThread']"),
        ("waits_for_a_signal_that_it_has_blocked", "SIGUSR1"),
        ("traces_its_threads", "0"),
        ("counts_its_children", "0"),
        ("shows_its_faults", "True True set()"),
    ],
)
def test_a_watched_script_sees_no_thread_of_ours(host: Host, script: str, saw: str) -> None:
    told = host.ok(script)
    assert told.returned == saw
    assert len(told.steps["step"]), "it was watched"


def test_it_runs_and_is_waited_for() -> None:
    go = threading.Event()
    seen: list[object] = []

    def run() -> None:
        seen.append(threading.current_thread().name)
        seen.append(signal.valid_signals() - signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        assert go.wait(LIMIT_S)

    thread = OwnThread(run, "ours")
    assert thread.join(0.0), "it has not been started"
    open_before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    thread.start()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == open_before
    assert not thread.join(0.0)
    assert all(listed.name != "ours" for listed in threading.enumerate())
    go.set()
    assert thread.join(LIMIT_S)
    never_blocked = {signal.SIGKILL, signal.SIGSTOP}
    assert seen == ["ours", ERRORS_OF_CODE | never_blocked]


def test_the_system_knows_it_by_a_number_while_it_runs() -> None:
    seen: list[tuple[int, frozenset[int]]] = []

    def run() -> None:
        seen.append((threading.get_native_id(), native_ids()))

    thread = OwnThread(run, "ours")
    thread.start()
    assert thread.join(LIMIT_S)
    ((number, while_it_ran),) = seen
    assert number in while_it_ran
    assert number not in native_ids()


def test_a_fork_has_a_thread_of_its_own_though_its_parents_has_not_run_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine some time may pass from the start of a thread to its first moment."""
    has_run = threading.Event()
    thread = OwnThread(has_run.set, "vitprof-test")
    with monkeypatch.context() as waiting:
        waiting.setattr("_thread.start_new_thread", Mock())
        thread.start()

    def start() -> int:
        signal.alarm(int(LIMIT_S))
        thread.start()
        return int(not has_run.wait(LIMIT_S))

    assert exit_status_of(fork_doing(start)) == 0


def test_an_error_is_printed_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("a defect")

    thread = OwnThread(fail, "ours")
    thread.start()
    assert thread.join(LIMIT_S)
    assert capsys.readouterr() == ("", "")


def test_one_that_cannot_be_started_leaves_the_signals_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    thread = OwnThread(lambda: None, "ours")
    open_before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.setattr("_thread.start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="start new thread"):
        thread.start()
    assert thread.join(0.0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == open_before


def test_another_thread_that_threading_does_not_know_is_listed_as_ever() -> None:
    """One that a library of C has started, for example."""
    import _thread

    ours = OwnThread(lambda: None, "ours")
    ours.start()
    assert ours.join(LIMIT_S)
    done = threading.Event()
    names: list[str] = []

    def run() -> None:
        current = threading.current_thread()
        names.extend(thread.name for thread in threading.enumerate() if thread is current)
        threading._active.pop(current.ident)  # type: ignore[attr-defined]
        done.set()

    _thread.start_new_thread(run, ())
    assert done.wait(LIMIT_S)
    assert len(names) == 1
    assert names[0].startswith("Dummy-")
