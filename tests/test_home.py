"""Where files go, and what is said where they cannot."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs
import pytest

from vitprof.errors import VitprofError
from vitprof.home import data_dir, ensure_dir, home, keep_private, log_dir, open_log, private_file
from vitprof.store import RunStore


def test_vitprof_home_is_used_but_not_made_by_being_asked_for(vitprof_home: Path) -> None:
    assert home() == vitprof_home
    assert data_dir() == vitprof_home / "data"
    assert log_dir() == vitprof_home / "logs"
    assert not vitprof_home.exists()


@pytest.mark.parametrize("unset", [True, False])
def test_without_it_the_user_data_directory_is_used(monkeypatch: pytest.MonkeyPatch, unset: bool) -> None:
    monkeypatch.delenv("VITPROF_HOME") if unset else monkeypatch.setenv("VITPROF_HOME", "")
    assert home() == Path(platformdirs.user_data_dir("vitprof", appauthor=False))


def test_a_tilde_is_read_as_a_shell_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VITPROF_HOME", "~/vitprof files")
    assert home() == tmp_path / "vitprof files"
    monkeypatch.setenv("VITPROF_HOME", "~no-such-user/files")
    assert home() == Path("~no-such-user/files")


def test_a_directory_is_made_with_its_parents_and_the_check_leaves_nothing_in_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b c" / "ü"
    assert ensure_dir(path) == path
    (path / "kept").write_text("kept")
    assert ensure_dir(path) == path
    assert [p.name for p in path.iterdir()] == ["kept"]


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_in_the_way_is_one_line_that_names_the_directory(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / below
    with pytest.raises(VitprofError) as caught:
        ensure_dir(path)
    assert str(caught.value).startswith(f"cannot write to {path}: ")
    assert "set VITPROF_HOME" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("below", [".", "new/directory"])
def test_a_read_only_directory_is_one_line_that_names_it(read_only_dir: Path, below: str) -> None:
    path = read_only_dir / below
    with pytest.raises(VitprofError, match="Permission denied; set VITPROF_HOME to a directory that can be") as caught:
        ensure_dir(path)
    assert str(path) in str(caught.value)
    assert os.listdir(read_only_dir) == []


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_home_and_its_store_are_their_owners_alone(vitprof_home: Path) -> None:
    RunStore().close()
    open_log(ensure_dir(log_dir()) / "run-1.log").close()
    assert (mode(vitprof_home), mode(vitprof_home / "recordings.sqlite")) == (0o700, 0o600)
    assert mode(log_dir() / "run-1.log") == 0o600


def test_one_that_was_open_to_others_is_closed_when_it_is_used(vitprof_home: Path) -> None:
    (vitprof_home / "logs").mkdir(parents=True)
    paths = [vitprof_home / "recordings.sqlite", log_dir() / "run-1.log"]
    for path in paths:
        path.touch()
        path.chmod(0o644)
    vitprof_home.chmod(0o755)
    RunStore().close()
    open_log(log_dir() / "run-1.log").close()
    assert (mode(vitprof_home), *map(mode, paths)) == (0o700, 0o600, 0o600)


def test_a_directory_that_holds_other_things_too_stays_open(vitprof_home: Path) -> None:
    vitprof_home.mkdir()
    vitprof_home.chmod(0o755)
    (vitprof_home / "thesis.tex").touch()
    RunStore().close()
    assert (mode(vitprof_home), mode(vitprof_home / "recordings.sqlite")) == (0o755, 0o600)


def test_nothing_of_somebody_else_and_nothing_behind_a_link_is_changed(tmp_path: Path) -> None:
    theirs, link = tmp_path / "theirs", tmp_path / "link"
    theirs.touch(mode=0o644)
    theirs.chmod(0o644)
    link.symlink_to(theirs)
    private_file(link)
    assert mode(theirs) == 0o644
    if os.geteuid() == 0:
        os.chown(theirs, 65534, 65534)
        keep_private(theirs)
        assert mode(theirs) == 0o644


def test_a_log_that_is_a_link_or_no_file_is_one_line_and_leaves_what_it_leads_to(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("kept")
    link.symlink_to(target)
    os.mkfifo(pipe)
    for path in (link, pipe):
        with pytest.raises(VitprofError, match=f"the log {path} cannot be written") as caught:
            open_log(path)
        assert "\n" not in str(caught.value)
    assert target.read_text() == "kept"
