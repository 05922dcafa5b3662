"""Where files go, and what is said where they cannot."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

from vitprof.errors import VitprofError
from vitprof.home import data_dir, ensure_dir, home, log_dir


def test_vitprof_home_is_used_but_not_made_by_being_asked_for(vitprof_home: Path) -> None:
    assert home() == vitprof_home
    assert data_dir() == vitprof_home / "data"
    assert log_dir() == vitprof_home / "logs"
    assert not vitprof_home.exists()


@pytest.mark.parametrize("unset", [True, False])
def test_without_it_the_user_data_directory_is_used(monkeypatch: pytest.MonkeyPatch, unset: bool) -> None:
    monkeypatch.delenv("VITPROF_HOME") if unset else monkeypatch.setenv("VITPROF_HOME", "")
    assert home() == Path(platformdirs.user_data_dir("vitprof", appauthor=False))


def test_a_tilde_is_the_users_own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VITPROF_HOME", "~/vitprof files")
    assert home() == tmp_path / "vitprof files"


def test_the_tilde_of_an_unknown_user_is_a_name_as_in_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
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
