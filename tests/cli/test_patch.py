"""`patch`: the diff of a tournament's answer, what it says instead, and what it writes."""

import os
import sys
from pathlib import Path

import pytest

from tests.command_line import Call, one_line
from tests.export.patch.scripts import own_script
from tests.ui.tournaments import add_script_tournament, add_tournament
from vitprof.analysis.tournament.recommend import Recommendation
from vitprof.cli.patch import why_undecided
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript
from vitprof.store import RunStore

SOURCE = """from torch.utils.data import DataLoader

loader = DataLoader(  # café
    samples,
    batch_size=8,
)
"""
PATCHED = SOURCE.replace("batch_size=8,\n", "batch_size=8,\n    num_workers=4,\n")
DIFF = """--- train.py
+++ train.py
@@ -3,4 +3,5 @@
 loader = DataLoader(  # café
     samples,
     batch_size=8,
+    num_workers=4,
 )
"""
FOUR = f"{OWN_SCRIPT}/workers=4"
WAITS = {UNCHANGED: 0.02, FOUR: 0.0001}
APPLY = "vitprof: nothing was written; python -m vitprof patch 1 --apply does that"
CODE = "vitprof: what it recommends, as code: DataLoader(..., num_workers=4)"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script's folder, in which the command is typed."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def script(work: Path, mine: RunStore) -> OwnScript:
    """A script with a tournament that recommends four workers."""
    made = own_script(work, SOURCE.encode(), "batch_size", "workers=4")
    add_script_tournament(mine, made, WAITS)
    return made


def lines(err: str) -> list[str]:
    """The lines on standard error, behind the tournament's answer."""
    answer, *others = err.splitlines()
    assert answer.startswith("vitprof: Use 4 workers: ")
    assert "times that of the unchanged script" in answer
    return others


def test_it_prints_a_diff_and_writes_nothing(call: Call, script: OwnScript, work: Path) -> None:
    status, out, err = call("patch", "1")
    assert (status, out, lines(err)) == (0, DIFF, [APPLY])
    assert (work / "train.py").read_text() == SOURCE


def test_it_writes_the_file_as_it_was_but_for_the_change(
    call: Call, script: OwnScript, work: Path
) -> None:
    path = work / "train.py"
    path.chmod(0o754)
    status, out, err = call("patch", "1", "--apply")
    assert (status, out, lines(err)) == (0, DIFF, [f"vitprof: wrote {path}"])
    assert (path.read_text(), path.stat().st_mode & 0o7777) == (PATCHED, 0o754)
    assert os.listdir(work) == ["train.py"]
    status, out, err = call("patch", "1", "--apply")
    assert (status, out) == (0, "")
    assert lines(err) == [f"vitprof: nothing to patch: line 3 of {path} has that already"]


def test_a_link_is_kept_and_where_it_leads_is_named(
    call: Call, script: OwnScript, work: Path, tmp_path: Path
) -> None:
    real = tmp_path / "elsewhere.py"
    (work / "train.py").rename(real)
    (work / "train.py").symlink_to(real)
    status, out, err = call("patch", "1", "--apply")
    assert (status, out) == (0, DIFF)
    wrote = f"vitprof: wrote {real}, to which {work / 'train.py'} leads"
    assert lines(err) == [wrote]
    assert ((work / "train.py").is_symlink(), real.read_text()) == (True, PATCHED)


def test_a_file_that_has_changed_is_written_only_by_force(
    call: Call, script: OwnScript, work: Path
) -> None:
    path = work / "train.py"
    path.write_text("\n" + SOURCE)
    doubt = f"vitprof: {path} has changed since the tournament"
    status, out, err = call("patch", "1")
    assert (status, out) == (0, DIFF.replace("-3,4 +3,5", "-4,4 +4,5"))
    assert lines(err) == [f"{doubt}: see whether the change still fits", APPLY]
    status, _, err = call("patch", "1", "--apply")
    assert (status, lines(err)) == (1, [f"{doubt}: nothing was written; --force writes it"])
    assert path.read_text() == "\n" + SOURCE
    status, _, err = call("patch", "1", "--apply", "--force")
    assert (status, lines(err)) == (0, [f"vitprof: wrote {path}"])
    assert path.read_text() == "\n" + PATCHED


def test_elsewhere_the_diff_names_the_file_from_the_scripts_folder(
    call: Call, script: OwnScript, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("patch", "1")[1].startswith("--- work/train.py\n+++ work/train.py\n")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert call("patch", "1")[1].startswith("--- train.py\n+++ train.py\n")


def test_what_to_do_by_hand_is_said_in_place_of_a_patch(
    call: Call, mine: RunStore, work: Path
) -> None:
    """Its exit status was 0, and a script went on as if the file had been changed."""
    source = SOURCE.replace("batch_size=8", "num_workers=cfg.workers")
    made = own_script(work, source.encode(), "num_workers", "workers=4")
    add_script_tournament(mine, made, WAITS)
    status, out, err = call("patch", "1", "--apply")
    assert (status, out) == (1, "")
    assert lines(err) == [
        "vitprof: no patch: the DataLoader in line 3 of train.py has values from elsewhere",
        "vitprof: num_workers is cfg.workers, line 5: make it 4 there",
        CODE,
    ]


def test_of_several_loaders_the_line_is_asked_for(call: Call, mine: RunStore, work: Path) -> None:
    source = SOURCE + SOURCE.partition("\n\n")[2]
    add_script_tournament(
        mine, own_script(work, source.encode(), "batch_size", "workers=4", made_digest=""), WAITS
    )
    status, out, err = call("patch", "1")
    assert (status, out) == (2, "")
    (line,) = lines(err)
    assert line == (
        "vitprof: --line none: train.py has 2 calls of DataLoader that it may be: line 3 (loader), "
        "line 7 (loader); give the line to change"
    )
    status, out, err = call("patch", "1", "--line", "7")
    assert (status, out.count("\n+"), lines(err)) == (
        0,
        2,
        [
            f"vitprof: whether {work / 'train.py'} is as it was in the tournament is not known: see "
            "whether the change still fits",
            APPLY,
        ],
    )


def test_an_answer_that_changes_nothing_has_no_patch(
    call: Call, mine: RunStore, work: Path
) -> None:
    made = own_script(work, SOURCE.encode(), "batch_size", "workers=4")
    add_script_tournament(mine, made, {UNCHANGED: 0.0001, FOUR: 0.02})
    nothing = one_line(call, "patch", "1", status=0)
    assert nothing.startswith("vitprof: nothing to patch: Keep the unchanged script, the baseline")
    add_script_tournament(mine, made, {UNCHANGED: 0.02})
    early = one_line(call, "patch", "2", status=1)
    assert early.startswith("vitprof: no patch: Too early: only the unchanged script has run")
    add_script_tournament(mine, made, {})
    assert one_line(call, "patch", "3", status=1) == (
        "vitprof: no patch: no setting has given a figure yet\n"
    )
    said = ("4 workers was at least 1.8 times as fast.", "Repeat it.")
    for outcome in ("fastest while busy", "faster while busy", "undecided"):
        not_firm = Recommendation(FOUR, said, (), 0.99, outcome=outcome)  # type: ignore[arg-type]
        assert why_undecided(not_firm) == " ".join(said)
    firm = Recommendation(FOUR, said, (), 0.99, outcome="recommended")
    assert why_undecided(firm) == ""


def test_what_is_wrong_is_one_line(
    call: Call,
    mine: RunStore,
    script: OwnScript,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_tournament(mine, {"per-sample": 0.02, "memory": 0.001})
    assert "ID 2: it is on jobs of vitprof's own" in one_line(call, "patch", "2")
    assert "there is no tournament 9" in one_line(call, "patch", "9", status=1)
    assert "--force: it goes with --apply" in one_line(call, "patch", "1", "--force")
    assert "--line 0: give a whole number" in one_line(call, "patch", "1", "--line", "0")
    status, _, err = call("patch", "1", "--line", "1")
    assert (status, lines(err)) == (
        2,
        ["vitprof: --line 1: the loader that trains is made in line 3 of train.py; leave it out"],
    )
    (work / "train.py").unlink()
    status, _, err = call("patch", "1")
    assert (status, lines(err)) == (
        1,
        [f"vitprof: no patch: train.py is not in {work}, nor in a folder below it", CODE],
    )


def test_libcst_is_asked_for_where_it_is_missing(
    call: Call, script: OwnScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("vitprof.export.patch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    status, out, err = call("patch", "1")
    assert (status, out) == (1, "")
    assert lines(err) == [
        "vitprof: the package libcst is not installed: python -m pip install -r requirements.txt"
    ]


def test_the_tournament_says_what_to_type_for_it(
    call: Call, mine: RunStore, script: OwnScript, work: Path
) -> None:
    typed = "to have it as a patch of your script type python -m vitprof patch 1\n"
    status, out, _ = call("tournament", "--resume", "1")
    assert status == 0
    assert f"\n    DataLoader(..., num_workers=4)\n\n{typed}" in out
    by_framework = own_script(work, SOURCE.encode(), "", "workers=4", made_by_script=False)
    add_script_tournament(mine, by_framework, WAITS)
    assert "as a patch" not in call("tournament", "--resume", "2")[1]
