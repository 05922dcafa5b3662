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
    Isolation,
    TrialFolder,
    isolation_of,
)
from vitprof.jobs.ways_out import ways_out

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
NO_LAYERS = "this machine lets nobody mount overlayfs"
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
    found = isolation_of(str(work), command)
    if isolation == LAYER and found.kind != LAYER:
        pytest.skip(NO_LAYERS)
    covered = (str(work), *found.layered) if isolation == LAYER else ()
    looked_at = ways_out(str(work), command).looked_at(covered)
    trial = TrialFolder(str(work), isolation, found.layered, looked_at)
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
    assert isolation_of(str(work)) == Isolation(COPY)
    monkeypatch.setattr(trial_folder, "COPIED_BYTES", 10)
    assert isolation_of(str(work)) == Isolation(IN_PLACE)
    monkeypatch.setattr(trial_folder, "MOST_FILES", 2)
    trial = TrialFolder(str(work), IN_PLACE, looked_at=[])
    assert trial.changes() == [MORE]


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
    found = isolation_of(str(work), command)
    if found.kind != LAYER:
        pytest.skip(NO_LAYERS)
    assert found == Isolation(LAYER, (str(work.parent),))
    trial = TrialFolder(str(work), LAYER, found.layered, [])
    subprocess.run(trial.command(command, "/"), cwd=trial.cwd, check=True)
    assert sorted(trial.changes()) == written
    assert contents(work.parent) == before
    trial.remove()


def test_what_can_have_no_layer_keeps_nothing_else_from_having_one(work: Path) -> None:
    elsewhere = work.parent / "elsewhere"
    (work / "checkpoints").symlink_to(elsewhere)
    (work / "dangling").symlink_to("/no-such-file")
    (work / "root").symlink_to("/")
    named = ["true", "/no-such-folder/of/a/run", "/dev/null"]
    found = isolation_of(str(work), named)
    if found.kind != LAYER:
        pytest.skip(NO_LAYERS)
    assert found.layered == (str(elsewhere),)
    # the root belongs to somebody else, unless this is run by root
    is_root = os.access("/", os.W_OK)
    assert len(found.links_out) == 1, "both lead to /"
    assert ("/no-such-file" in found.links_out[0] or "more" in found.links_out[0]) == is_root
    assert found.open_places == (("/no-such-folder/of/a/run",) if is_root else ())
    trial = TrialFolder(str(work), LAYER, found.layered, [])
    script = "echo new > checkpoints/deleted.pt; mkdir checkpoints/more"
    subprocess.run(trial.command(["sh", "-c", script], "/"), cwd=trial.cwd, check=True)
    assert contents(elsewhere) == {"deleted.pt": ""}
    trial.remove()


def test_the_root_has_no_layer(tmp_path: Path) -> None:
    """Mounting over it succeeds, and covers nothing: a process keeps the root that it has."""
    (tmp_path / "0").mkdir()
    layers = [sys.executable, "-I", str(trial_folder.LAYER_SCRIPT), str(tmp_path), "/", '["/"]']
    ran = subprocess.run([*layers, "true"], capture_output=True, text=True, check=False)
    assert ran.returncode == 125
    assert ran.stderr.startswith('vitprof: no layer could be put over ["/"]: ')
