"""A file is written whole or not at all."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vitprof.errors import VitprofError
from vitprof.export import write_text


@contextmanager
def little_room(n_bytes: int) -> Iterator[None]:
    """No file may grow beyond `n_bytes`: the closest to a full disk that needs no disk of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_written_as_it_is_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out ü.csv"
    for text in ("a,ü\r\n" * 3, "b\r\n"):
        write_text(path, text)
        assert path.read_bytes() == text.encode()
    assert os.listdir(tmp_path) == [path.name]


def test_what_cannot_be_written_whole_is_not_written_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_text(path, "old")
    with little_room(2**20), pytest.raises(VitprofError, match=r"out\.csv cannot be written: File too large$"):
        write_text(path, "x" * 2**21)
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\udcff")
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["out.csv"])


@pytest.mark.parametrize(
    ("path", "why"), [("", "Is a directory"), ("no/out.csv", "No such file"), ("file/out.csv", "Not a directory")]
)
def test_a_place_that_takes_no_file_is_one_line_that_names_it(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(VitprofError, match=why) as caught:
        write_text(tmp_path / path, "x")
    assert str(caught.value).startswith(f"{tmp_path / path} cannot be written: ")
    assert [p.name for p in tmp_path.rglob("*")] == ["file"]
    assert not list(tmp_path.parent.glob("*.tmp"))


def test_a_read_only_directory_is_one_line(read_only_dir: Path) -> None:
    with pytest.raises(VitprofError, match=r"out\.csv cannot be written: Permission denied$"):
        write_text(read_only_dir / "out.csv", "x")


def test_a_pipe_is_written_to_and_a_link_followed_instead_of_being_replaced(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "a\r\n")
        assert os.read(reader, 100) == b"a\r\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
