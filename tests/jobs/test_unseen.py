"""Why no training is seen, from the signs that processes leave."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from vitprof.jobs.unseen import why_failed, why_unseen, worker_signal


@pytest.mark.parametrize(
    ("command", "signs", "words"),
    [
        ("python train.py -I", "", "without PYTHONPATH, in a container or on another host"),
        ("env -u PYTHONPATH python train.py", "", "without PYTHONPATH"),
        (
            "nice /opt/bin/python3.12 -u -I train.py -S",
            "",
            "vitprof watch -- nice /opt/bin/python3.12 -u train.py -S",
        ),
        ("python -sE -m train -E", "", "type: vitprof watch -- python -s -m train -E"),
        ("python train.py", "old 3.8", "this Python is 3.8, and vitprof watches 3.10 and newer"),
        ("python train.py", "python", "no process that has vitprof's hook; if a child trains"),
        ("python train.py", "python torch", "made a DataLoader"),
        ("python train.py", "python torch loader", "an iterator that vitprof knows"),
        ("python train.py", "python torch loader batch", "under torch.no_grad() only"),
        ("python train.py", "python torch loader gradients", "with vitprof.step()"),
    ],
)
def test_the_signs_say_why(command: str, signs: str, words: str, tmp_path: Path) -> None:
    for sign in [signs] if signs.startswith("old") else signs.split():
        (tmp_path / f"socket.{sign}").touch()
    listener = SimpleNamespace(places=SimpleNamespace(has_first=False))
    line = why_unseen(listener, command.split(), str(tmp_path), {"steps": 5, "headroom": False})  # type: ignore[arg-type]
    assert words in line
    assert line.endswith("; --steps can't act on it")
    listener.places.has_first = True
    assert why_unseen(listener, command.split(), str(tmp_path), {}) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "lines", "why"),
    [
        ("python train.py", "7 ValueError: no", ": ValueError: no"),
        ("python train.py", "", ""),
        ("python train.py", "8 ModuleNotFoundError: a probe's", ""),
        (
            "torchrun train.py",
            "8 ValueError: no\n9 KeyError: 1\n7 ChildFailedError: ",
            ": ValueError: no",
        ),
        ("bash run.sh", "8 ValueError: no", ": ValueError: no"),
        ("python run.py", "7 CalledProcessError: exit 1", ": CalledProcessError: exit 1"),
    ],
)
def test_a_failed_command_says_why(command: str, lines: str, why: str, tmp_path: Path) -> None:
    errors = tmp_path / "socket.errors"
    errors.write_text(lines)
    assert why_failed(str(errors), 7, command.split()) == why
    assert why_failed(str(tmp_path / "gone"), 7, command.split()) == ""


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (": RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed.", signal.SIGKILL),
        (
            ": RuntimeError: DataLoader worker (pid 5) is killed by signal: Bus error. It is possible that",
            signal.SIGBUS,
        ),
        (": RuntimeError: DataLoader worker (pid(s) 5) exited unexpectedly", None),
        (": ValueError: Killed.", None),
        ("", None),
    ],
)
def test_the_signal_that_ended_a_worker_is_known_by_its_name(
    error: str, number: int | None
) -> None:
    assert worker_signal(error) == number
