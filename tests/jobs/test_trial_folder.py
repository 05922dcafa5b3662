"""Trials that change none of the user's files, and what they say of those that they would have changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitprof.jobs import trial_folder
from vitprof.jobs.trial_folder import (
    COPY,
    IN_PLACE,
    LAYER,
    MORE,
    TrialFolder,
    isolation_of,
    named_folders,
)

SCRIPT = """
import os, shutil, sys
open("model.pt", "w").write("new")
open("appended.log", "a").write("more")
open("same.txt", "r+").write("old")
os.remove("gone.pt"); shutil.rmtree("run")
os.mkdir("run"); open("run/new.txt", "w").close()
os.mkdir("other"); os.rename("other", "named"); open("named/a", "w").close()
os.makedirs("run/__pycache__"); open("run/__pycache__/a.pyc", "w").close()
os.replace("model.pt", "best.pt"); shutil.copy("best.pt", "model.pt")
open(sys.argv[1] + "/outside.pt", "w").close(); os.remove(sys.argv[1] + "/deleted.pt")
print(os.getcwd())
"""
CHANGED = ["appended.log", "best.pt", "gone.pt (deleted)", "model.pt", "named/a"]
CHANGED += ["run/new.txt", "run/old.txt (deleted)"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "a, b: c"
    (folder / "run").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for name in ("model.pt", "appended.log", "same.txt", "gone.pt", "run/old.txt", "best.pt"):
        (folder / name).write_text("old")
    (tmp_path / "elsewhere" / "deleted.pt").touch()
    os.link(folder / "model.pt", tmp_path / "linked.pt")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("isolation", [LAYER, COPY, IN_PLACE])
def test_what_a_trial_changes(work: Path, isolation: str) -> None:
    before, elsewhere = contents(work), work.parent / "elsewhere"
    command = [sys.executable, "-c", SCRIPT, str(elsewhere)]
    found, layered = isolation_of(str(work), command)
    if isolation == LAYER and found != LAYER:
        pytest.skip("this machine lets nobody mount overlayfs")
    trial = TrialFolder(str(work), isolation, layered, named_folders(command, str(work)))
    started = trial.command(command, "/")
    ran = subprocess.run(started, cwd=trial.cwd, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == os.path.realpath(trial.cwd)
    place = "../elsewhere" if isolation == LAYER else str(elsewhere)
    outside = [f"{place}/deleted.pt (deleted)", f"{place}/outside.pt"]
    reported = [f"{elsewhere}/outside.pt"]
    assert sorted(set(trial.changes(reported)) - {"same.txt"}) == sorted([*CHANGED, *outside])
    assert (elsewhere / "outside.pt").exists() == (isolation != LAYER)
    assert (contents(work) == before) == bool(isolation)
    assert (work.parent / "linked.pt").read_text() == ("old" if isolation else "new")
    made = trial._made
    trial.remove()
    assert not os.path.exists(made)


def test_what_cannot_be_layered_or_copied_runs_in_place(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_folder, "LAYER_SCRIPT", work / "none")
    assert isolation_of(str(work)) == (COPY, ())
    monkeypatch.setattr(trial_folder, "COPIED_BYTES", 10)
    assert isolation_of(str(work)) == (IN_PLACE, ())
    monkeypatch.setattr(trial_folder, "MOST_FILES", 2)
    trial = TrialFolder(str(work), IN_PLACE, looked_at=[])
    assert trial.changes() == [MORE]


def test_folders_that_a_command_names_and_a_script_in_the_folder_is_that_of_the_copy(
    work: Path,
) -> None:
    trial = TrialFolder(str(work), COPY)
    (script,) = trial.command([str(work / "train.py")], "/")
    assert script == os.path.join(trial.cwd, "train.py")
    trial.remove()
    elsewhere = str(work.parent / "elsewhere")
    for argument in (elsewhere, f"--out={elsewhere}/new.pt", "../elsewhere/x"):
        assert named_folders(
            ["python", argument, "runs/1", str(work), "/no/such/place"], str(work)
        ) == [elsewhere]


@pytest.mark.parametrize("by_links", [False, True])
def test_the_folder_above_and_where_links_lead_is_covered_too(work: Path, by_links: bool) -> None:
    command = [
        sys.executable,
        "-c",
        "open('../above.pt', 'w'); open('below.pt', 'w')",
        "../above.pt",
    ]
    written = ["../above.pt", "below.pt"]
    if by_links:
        (work / "checkpoints").symlink_to("../elsewhere")
        (work / "last.pt").symlink_to(work.parent / "linked.pt")
        command = [sys.executable, "-c", "open('checkpoints/a.pt', 'w'); open('last.pt', 'w')"]
        written = ["../elsewhere/a.pt", "../linked.pt"]
    before = contents(work.parent)
    found, layered = isolation_of(str(work), command)
    if found != LAYER:
        pytest.skip("this machine lets nobody mount overlayfs")
    assert layered == (str(work.parent),)
    assert not by_links or isolation_of(str(work), ["true", "/proc/self/"]) == (LAYER, layered)
    trial = TrialFolder(str(work), LAYER, layered, layered)
    subprocess.run(trial.command(command, "/"), cwd=trial.cwd, check=True)
    assert sorted(trial.changes()) == written
    assert contents(work.parent) == before
    trial.remove()
