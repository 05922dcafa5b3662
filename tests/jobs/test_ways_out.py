"""The ways by which a trial reaches files outside of its folder."""

import os
from pathlib import Path

import pytest

from vitprof.jobs import ways_out as module
from vitprof.jobs.ways_out import ARGUMENT, LINK, MOUNT, WayOut, gathered, ways_out


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for folder in ("work/run", "out/old", "scratch"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "out" / "model.pt").touch()
    return tmp_path / "work"


def links(folder: Path, *command: str) -> dict[str, str]:
    """Words of each link out of a folder -> the place where it is written."""
    found = ways_out(str(folder), ("python", *command))
    assert found.complete
    return {way.words: way.place for way in found.ways if way.kind == LINK}


def test_links_that_stay_in_the_folder_are_no_way_out(work: Path) -> None:
    (work / "latest").symlink_to("run")
    (work / "whole").symlink_to(work / "run")
    (work / "itself").symlink_to(work)
    (work / "run" / "up").symlink_to("..")
    (work / "round").symlink_to("../work/run")
    (work / "loop").symlink_to("loop")
    (work / "dangling").symlink_to("no-such-file")
    assert links(work) == {}


def test_links_to_folders_files_and_what_is_not_there_yet(work: Path) -> None:
    top = work.parent
    (work / "a").symlink_to("../out")
    (work / "b").symlink_to(top / "out" / "model.pt")
    (work / "c").symlink_to(top / "scratch" / "new" / "deeper.pt")
    (work / "null").symlink_to("/dev/null")
    out, scratch = str(top / "out"), str(top / "scratch")
    found = links(work)
    assert found.pop(f"c -> {scratch}/new/deeper.pt") == scratch
    # of two to one place one is named
    ((words, place),) = found.items()
    assert place == out
    first, second = f"a -> {out}", f"b -> {out}/model.pt"
    assert words in [f"{one} and 1 more into {out}" for one in (first, second)]


def test_links_of_the_folders_that_links_lead_to_are_followed(work: Path) -> None:
    top = work.parent
    (work / "out").symlink_to("../out")
    (top / "out" / "newest").symlink_to(top / "scratch")
    (top / "out" / "back").symlink_to(work)
    (top / "out" / "inside").symlink_to("old")
    (top / "scratch" / "round").symlink_to(top / "out")
    assert links(work) == {
        f"out -> {top}/out": f"{top}/out",
        f"{top}/out/newest -> {top}/scratch": f"{top}/scratch",
        f"{top}/out/back -> {work}": str(work),
        f"{top}/scratch/round -> {top}/out and 1 more into {top}/out": f"{top}/out",
    } or links(work) == {
        f"out -> {top}/out and 1 more into {top}/out": f"{top}/out",
        f"{top}/out/newest -> {top}/scratch": f"{top}/scratch",
        f"{top}/out/back -> {work}": str(work),
    }


def test_what_the_command_names(work: Path) -> None:
    top = work.parent
    for argument in (f"{top}/out", f"--out={top}/out/new.pt", "../out/model.pt", "../out/old/../x"):
        command = ["python", argument, "run/1", str(work), "a\n/b"]
        (way,) = ways_out(str(work), command).ways
        assert (way.kind, way.place) == (ARGUMENT, f"{top}/out")
    (way,) = ways_out(str(work), ["python", f"{top}/out/not/there/yet"]).ways
    assert way.place == f"{top}/out"
    # what a link in a named folder leads to is named, and needs no question of its own
    (top / "out" / "newest").symlink_to(top / "scratch")
    found = ways_out(str(work), ["python", f"{top}/out"])
    assert [(way.kind, way.place) for way in found.ways] == [
        (ARGUMENT, f"{top}/out"),
        (ARGUMENT, f"{top}/scratch"),
    ]
    # unless a link in the script's folder leads there too
    (work / "out").symlink_to("../out")
    found = ways_out(str(work), ["python", f"{top}/out"])
    assert {way.place for way in found.ways if way.kind == LINK} == {f"{top}/out", f"{top}/scratch"}


def test_file_systems_that_are_mounted_in_the_folder(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = work.parent
    rows = [f"{n} 1 0:1 / {path} rw - ext4 /dev/a rw\n" for n, path in enumerate(("/", work))]
    rows.append(f"9 1 0:1 / {work}/run rw - ext4 /dev/b rw\n")
    (top / "mounts").write_text("".join(rows))
    monkeypatch.setattr(module, "MOUNTS", str(top / "mounts"))
    (top / "out" / "there").symlink_to(work / "run" / "1")
    found = ways_out(str(work), ["python", f"{top}/out"])
    mounted = WayOut(MOUNT, "run (mounted)", f"{work}/run", (f"{work}/run",))
    assert mounted in found.ways
    assert not found.covers(str(work), f"{work}/run/1")
    assert found.covers(f"{work}/run", f"{work}/run/1")
    assert found.covers(str(work), f"{work}/running")
    assert found.outermost([str(work), f"{work}/run", f"{work}/a"]) == (str(work), f"{work}/run")
    assert [way.place for way in found.left([str(work), f"{top}/out"])] == [f"{work}/run"] * 2
    (work / "model.pt").touch()
    rows.append(f"9 1 0:1 / {work}/model.pt rw - ext4 /dev/b rw\n")
    (top / "mounts").write_text("".join(rows))
    assert ways_out(str(work)).looked_at([str(work)]) == [f"{work}/run", f"{work}/model.pt"]


def test_a_folder_of_others_in_which_this_user_owns_some(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = work.parent
    (top / "out" / "old" / "deeper").mkdir()
    (work / "out").symlink_to(top / "out")
    may_write = os.access
    monkeypatch.setattr(
        module.os, "access", lambda path, mode: path != f"{top}/out" and may_write(path, mode)
    )
    assert links(work) == {f"out -> {top}/out": f"{top}/out/old"}


def test_what_is_not_searched_is_a_way_out_whoever_owns_it(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = work.parent
    monkeypatch.setattr(module.os, "access", lambda path, mode: False)
    (work / "root").symlink_to("/")
    (work / "processes").symlink_to("/proc")
    assert links(work) == {"root -> /": "/", "processes -> /proc": "/proc"}
    (work / "out").symlink_to(top / "out")
    monkeypatch.setattr(module, "MOST_ENTRIES", 4)
    found = ways_out(str(work))
    assert f"out -> {top}/out" in [way.words for way in found.ways]
    assert not found.complete


def test_where_changes_are_looked_for(work: Path) -> None:
    top = work.parent
    command = [
        "python",
        "../out/model.pt",
        "../new/deeper",
        "../scratch",
        "../scratch/a",
        "../b.pt",
    ]
    found = ways_out(str(work), command)
    new, beside, out, scratch = (str(top / name) for name in ("new", "b.pt", "out", "scratch"))
    assert sorted(found.looked_at(())) == sorted([out, scratch, new, beside])
    assert sorted(found.looked_at([out])) == sorted([scratch, new, beside])


def test_too_many_files_to_look_at_all_of_them(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENTRIES", 2)
    for n in range(3):
        (work / f"{n}").touch()
    assert not ways_out(str(work)).complete


def test_many_places_become_those_above_them() -> None:
    places = [f"/data/{kind}/{n}" for kind in "ab" for n in range(20)]
    assert gathered(places, 40) == places
    assert gathered(places, 39) == ["/data/a", "/data/b"]
    assert gathered([*places, "/x/y"], 2) == ["/data", "/x"]
    assert gathered([f"/{n}" for n in range(5)], 3) == ["/0", "/1", "/2"]
