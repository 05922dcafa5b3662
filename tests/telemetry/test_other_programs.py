"""Which other programs use the CPU, by a /proc of the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitprof.telemetry import other_programs, program_names
from vitprof.telemetry.other_programs import OtherPrograms


class Proc:
    """A folder like /proc."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ticks = dict[int, int]()

    def used(self, pid: int, name: str, cpu_s: float, state: str = "S") -> None:
        """A process has used so much more."""
        self._ticks[pid] = self._ticks.get(pid, 0) + round(100 * cpu_s)
        (self._folder / str(pid)).mkdir(exist_ok=True)
        user = self._ticks[pid]
        line = f"{pid} ({name}) {state} 1 1 1 0 -1 0 0 0 0 0 {user} 0 0 0 20 0 1 0 1 0 1"
        (self._folder / str(pid) / "stat").write_text(line)

    def runs(self, pid: int, executable: str, *command: str) -> None:
        """A process has become another program."""
        folder = self._folder / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "exe").unlink(missing_ok=True)
        (folder / "exe").symlink_to(executable)
        (folder / "cmdline").write_bytes("\0".join((*command, "")).encode())

    def ends(self, pid: int) -> None:
        (self._folder / str(pid) / "stat").unlink()
        (self._folder / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr(other_programs, "PROC", tmp_path)
    monkeypatch.setattr(program_names, "PROC", tmp_path)
    monkeypatch.setattr(other_programs.os, "sysconf", lambda _name: 100)
    (tmp_path / "self").mkdir()
    return Proc(tmp_path)


def test_programs_are_named_with_their_cores_and_not_the_jobs_own(proc: Proc) -> None:
    proc.used(7, "a (b) c", 100.0)
    proc.used(8, "python", 5.0)
    proc.used(9, "train", 5.0)
    programs = OtherPrograms()
    assert programs.sample(10.0, {9}) is None, "nothing is known yet"
    proc.used(7, "a (b) c", 1.3)
    proc.used(8, "python", 0.12)
    proc.used(9, "train", 2.0)
    assert programs.sample(11.0, {9}) is None
    assert programs.sample(12.0, {9}) == [
        {"name": "a (b) c", "pid": 7, "cores": 0.65, "processes": 1},
        {"name": "python", "pid": 8, "cores": 0.06, "processes": 1},
    ]
    proc.used(10, "later", 1.0)
    proc.ends(8)
    assert programs.sample(14.0, {9}) == [
        {"name": "a (b) c", "pid": 7, "cores": 0.325, "processes": 1},
        {"name": "later", "pid": 10, "cores": 0.25, "processes": 1},
    ], "one that began later has all it used, and 0.12 s of four are too little"


def test_the_jobs_own_process_is_none_of_them_when_it_has_ended(proc: Proc) -> None:
    programs = OtherPrograms()
    proc.used(7, "other", 0.0)
    proc.used(9, "train", 0.0)
    programs.sample(0.0, {9})
    proc.used(7, "other", 1.0)
    proc.used(9, "train", 1.0)
    programs.sample(2.0, {9})
    proc.used(7, "other", 1.0, "Z")
    proc.used(9, "train", 1.0, "Z")
    named = programs.sample(4.0, set())
    assert named == [{"name": "other", "pid": 7, "cores": 0.25, "processes": 1}]


def test_looks_come_ever_less_often(proc: Proc) -> None:
    programs = OtherPrograms()
    looked_at = [t for t in range(0, 300) if programs.sample(float(t), set()) is not None]
    assert looked_at == [2, 4, 8, 16, 32, 64, 124, 184, 244]


def test_without_proc_no_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(other_programs, "PROC", tmp_path / "gone")
    programs = OtherPrograms()
    programs.sample(0.0, set())
    assert programs.sample(5.0, set()) == []


def test_processes_of_one_name_are_added_up_and_the_busiest_is_named(proc: Proc) -> None:
    programs = OtherPrograms()
    programs.sample(0.0, set())
    for pid, cpu_s in ((7, 0.06), (8, 0.2), (9, 0.06)):
        proc.used(pid, "chrome", cpu_s)
    proc.used(10, "chrome", 0.0)
    assert programs.sample(2.0, set()) == [
        {"name": "chrome", "pid": 8, "cores": 0.16, "processes": 3}
    ], "the one that did nothing is not counted"


def test_a_program_is_named_by_its_file_also_once_it_has_become_another(proc: Proc) -> None:
    programs = OtherPrograms()
    programs.sample(0.0, set())
    proc.runs(7, "/opt/chrome/chromium-headless-shell (deleted)")
    proc.used(7, "chromium-headle", 1.0)
    proc.runs(8, "/usr/bin/bash")
    proc.used(8, "bash", 0.1)
    programs.sample(2.0, set())
    proc.runs(8, "/venv/bin/python3.12", "python", "-u", "/home/me/private/train.py", "--token=X")
    proc.used(8, "python", 1.0)
    named = programs.sample(4.0, set())
    assert named is not None
    assert [program["name"] for program in named] == ["train.py", "chromium-headless-shell"]


def test_a_program_of_another_user_has_the_kernels_name(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = OtherPrograms()
    programs.sample(0.0, set())
    proc.runs(7, "/venv/bin/python3", "python3", "secret.py")
    proc.used(7, "python3", 1.0)
    monkeypatch.setattr(program_names.os, "geteuid", lambda: -1)
    named = programs.sample(2.0, set())
    assert named is not None
    assert [program["name"] for program in named] == ["python3"]
