"""Where files go, and what is said where they cannot."""

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


def test_without_it_the_user_data_directory_and_a_tilde(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VITPROF_HOME", "")
    assert home() == Path(platformdirs.user_data_dir("vitprof", appauthor=False))
    monkeypatch.delenv("VITPROF_HOME")
    assert home() == Path(platformdirs.user_data_dir("vitprof", appauthor=False))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VITPROF_HOME", "~/vitprof files")
    assert home() == tmp_path / "vitprof files"
    monkeypatch.setenv("VITPROF_HOME", "~no-such-user/files")
    assert home() == Path("~no-such-user/files")


def test_a_directory_is_made_with_its_parents_and_the_check_leaves_nothing_in_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a" / "b c" / "ü"
    assert ensure_dir(path) == path
    (path / "kept").write_text("kept")
    assert ensure_dir(path) == path
    assert [p.name for p in path.iterdir()] == ["kept"]


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_in_the_way_is_one_line_that_names_the_directory(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / below
    with pytest.raises(
        VitprofError, match=rf"^cannot write to {path}: [^\n]*set VITPROF_HOME [^\n]*$"
    ):
        ensure_dir(path)


@pytest.mark.parametrize("below", [".", "new/directory"])
def test_a_read_only_directory_is_one_line_that_names_it(read_only_dir: Path, below: str) -> None:
    path = read_only_dir / below
    with pytest.raises(
        VitprofError,
        match=f"{path}: Permission denied; set VITPROF_HOME to a directory that can be",
    ):
        ensure_dir(path)
    assert os.listdir(read_only_dir) == []


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_home_and_its_store_are_their_owners_alone_also_where_they_were_open_to_others(
    vitprof_home: Path,
) -> None:
    paths = [vitprof_home / "recordings.sqlite", log_dir() / "run-1.log"]
    for _ in range(2):
        RunStore().close()
        open_log(ensure_dir(log_dir()) / "run-1.log").close()
        assert (mode(vitprof_home), *map(mode, paths)) == (0o700, 0o600, 0o600)
        for path in (vitprof_home, *paths):
            path.chmod(mode(path) | 0o055)
    (vitprof_home / "recordings.sqlite").unlink()
    (vitprof_home / "thesis.tex").touch()  # a directory that holds other things too stays open
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


def test_a_log_that_is_a_link_or_no_file_is_one_line_and_leaves_what_it_leads_to(
    tmp_path: Path,
) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("kept")
    link.symlink_to(target)
    os.mkfifo(pipe)
    for path in (link, pipe):
        with pytest.raises(VitprofError, match=rf"^the log {path} cannot be written[^\n]*$"):
            open_log(path)
    assert target.read_text() == "kept"
