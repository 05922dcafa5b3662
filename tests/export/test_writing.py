"""A file is written whole or not at all; on a full disk every exporter ends with one line and no file."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Call
from tests.ui.dashboard import add_run
from vitprof.cli.export import FORMATS
from vitprof.errors import VitprofError
from vitprof.export import write_text
from vitprof.store import RunStore


def test_a_file_is_written_as_it_is_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out ü.csv"
    for text in ("a,ü\r\n" * 3, "b\r\n"):
        write_text(path, text)
        assert path.read_bytes() == text.encode()
    assert os.listdir(tmp_path) == [path.name]


def test_what_cannot_be_written_whole_is_not_written_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_text(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (2**20, hard)
    )  # the closest to a full disk that needs no disk of its own
    try:
        with pytest.raises(VitprofError, match=r"out\.csv cannot be written: File too large$"):
            write_text(path, "x" * 2**21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\udcff")
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["out.csv"])


def test_a_place_that_takes_no_file_is_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for path, why in (
        ("", "Is a directory"),
        ("no/out.csv", "No such file"),
        ("file/out.csv", "Not a directory"),
    ):
        with pytest.raises(VitprofError, match=f"^{tmp_path / path} cannot be written: {why}"):
            write_text(tmp_path / path, "x")
    assert [p.name for p in tmp_path.rglob("*")] == ["file"]
    assert not list(tmp_path.parent.glob("*.tmp"))


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


ROOM = "24k"
STEPS = 600
"""Enough for every format to be larger than that."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 KiB."""
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", str(where)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)


def fill(disk: Path) -> None:
    """Leaves no room at all, for files that would fit."""
    with pytest.raises(OSError, match="No space left"):
        (disk / "full").write_bytes(bytes(1 << 16))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_ends_with_one_line_and_no_file(
    call: Call, mine: RunStore, disk: Path, kind: str
) -> None:
    add_run(mine, n=STEPS)
    if kind in ("csv", "parquet", "json"):
        fill(disk)
    before = os.listdir(disk)
    status, out, err = call("export", "1", "--format", kind, "--output", str(disk / "out"))
    assert (status, out) == (1, "")
    assert err.startswith(f"vitprof: {disk / 'out'} cannot be written: ")
    assert (err.count("\n"), os.listdir(disk)) == (1, before)


@pytest.mark.parametrize(
    "command", [("bundle", "1", "--output"), ("code", "1", "--output"), ("export", "1", "--csv")]
)
def test_the_other_commands_do_too(
    call: Call, mine: RunStore, disk: Path, command: tuple[str, ...]
) -> None:
    add_run(mine, n=3)
    fill(disk)
    status, _, err = call(*command, str(disk / "out"))
    assert (status, err) == (
        1,
        f"vitprof: {disk / 'out'} cannot be written: No space left on device\n",
    )
    assert os.listdir(disk) == ["full"]
