"""A copy of a folder whose links, and those of whoever names it, lead where they led from the folder."""

import os
import subprocess
from pathlib import Path

import pytest

from vitprof.jobs.folder_copy import FolderCopy


@pytest.fixture
def copied(tmp_path: Path) -> FolderCopy:
    work = tmp_path / "home" / "work"
    (work / "run").mkdir(parents=True)
    (tmp_path / "home" / "out").mkdir()
    (tmp_path / "made").mkdir()
    (work / "run" / "model.pt").write_text("old")
    (tmp_path / "home" / "out" / "best.pt").write_text("old")
    return FolderCopy(str(work), str(tmp_path / "made" / "work"))


INTO = {
    "to itself": (".", "{work}", "run/model.pt"),
    "with a slash": (".", "{work}/", "run/model.pt"),
    "into itself": (".", "{work}/run", "model.pt"),
    "to a file": (".", "{work}/run/model.pt", ""),
    "by a folder above": (".", "{top}/out/../work/run", "model.pt"),
    "relative": (".", "run", "model.pt"),
    "relative, by the folder's name": (".", "../work/run", "model.pt"),
    "relative, by the folder above": (".", "../../home/work", "run/model.pt"),
    "up from below": ("run", "..", "run/model.pt"),
    "up and down": ("run", "../run/model.pt", ""),
    "by a link that leads here": (".", "{alias}/run", "model.pt"),
    "by two links that lead here": (".", "{alias_of_alias}/run", "model.pt"),
    "to a link that leads here": (".", "{alias}", "run/model.pt"),
    "by another link in it": (".", "first/run", "model.pt"),
    "to another link in it": (".", "{work}/first", "run/model.pt"),
    "by the kernel's name": (".", "/proc/self/root{work}/run", "model.pt"),
}
"""Name -> the folder of a link, its text, and what is written through it."""


@pytest.mark.parametrize("shape", INTO)
def test_links_that_lead_into_the_folder_lead_into_the_copy(copied: FolderCopy, shape: str) -> None:
    where, text, below = INTO[shape]
    work = Path(copied.folder)
    top = work.parent
    (top / "alias").symlink_to(work)
    (top / "alias2").symlink_to(top / "alias")
    (work / "first").symlink_to(work)
    link = work / where / "link"
    names = {"work": work, "top": top, "alias": top / "alias", "alias_of_alias": top / "alias2"}
    link.symlink_to(text.format(**names))
    written = os.path.join(where, "link", below).rstrip("/")
    assert (work / written).read_text() == "old", "the shape is what its name says"
    copied.make()
    (Path(copied.copy) / written).write_text("new")
    assert (work / "run" / "model.pt").read_text() == "old"
    assert Path(copied.copy, "run", "model.pt").read_text() == "new"


OUT = {
    "whole": "{top}/out/best.pt",
    "relative": "../out/best.pt",
    "relative, and far": "../../home/out/best.pt",
    "by a link in it": "out/best.pt",
    "by a whole path and a link in it": "{work}/out/best.pt",
}


@pytest.mark.parametrize("shape", OUT)
def test_links_that_lead_out_of_the_folder_lead_there_from_the_copy(
    copied: FolderCopy, shape: str
) -> None:
    work = Path(copied.folder)
    (work / "out").symlink_to("../out")
    (work / "link").symlink_to(OUT[shape].format(work=work, top=work.parent))
    copied.make()
    assert Path(copied.copy, "link").read_text() == "old"
    assert os.path.realpath(f"{copied.copy}/link") == f"{work.parent}/out/best.pt"


def test_links_in_folders_that_are_not_searched_otherwise_and_broken_ones(
    copied: FolderCopy,
) -> None:
    work = Path(copied.folder)
    for name in (".git", "__pycache__"):
        (work / name).mkdir()
        (work / name / "link").symlink_to(work / "run")
    (work / "loop").symlink_to("loop")
    (work / "whole loop").symlink_to(work / "whole loop")
    (work / "dangling").symlink_to(work / "none")
    (work / "outside").symlink_to("/no/such/place")
    copied.make()
    for name in (".git", "__pycache__"):
        assert os.readlink(f"{copied.copy}/{name}/link") == f"{copied.copy}/run"
    texts = {name: os.readlink(f"{copied.copy}/{name}") for name in ("loop", "dangling", "outside")}
    assert texts == {
        "loop": "loop",
        "dangling": f"{copied.copy}/none",
        "outside": "/no/such/place",
    }
    assert os.readlink(f"{copied.copy}/whole loop") == f"{copied.copy}/whole loop"


def test_a_file_with_several_names_is_the_copys_own(copied: FolderCopy) -> None:
    work = Path(copied.folder)
    os.link(work / "run" / "model.pt", work / "run" / "same.pt")
    os.link(work / "run" / "model.pt", work.parent / "out" / "same.pt")
    copied.make()
    for name in ("model.pt", "same.pt"):
        Path(copied.copy, "run", name).write_text("new")
    names = (work / "run" / "model.pt", work / "run" / "same.pt", work.parent / "out" / "same.pt")
    assert [path.read_text() for path in names] == ["old"] * 3


WORDS = {
    "train.py": "train.py",
    "{work}/train.py": "{copy}/train.py",
    "{work}": "{copy}",
    "{work}/": "{copy}/",
    "--out={work}/run": "--out={copy}/run",
    "-o{work}/run": "-o{copy}/run",
    "a={work},b={work}/run": "a={copy},b={copy}/run",
    "cd {work} && python {work}/train.py": "cd {copy} && python {copy}/train.py",
    "open('{work}/model.pt', 'w')": "open('{copy}/model.pt', 'w')",
    "{work}2/train.py": "{work}2/train.py",
    "{work}.bak": "{work}.bak",
    "/mnt{work}/run": "/mnt{work}/run",
    "{top}/alias/run": "{copy}/run",
    "../work/run": "{copy}/run",
    "{work}/../out": "{top}/out",
    "../out": "{top}/out",
    "..": "{top}",
    "run/../train.py": "run/../train.py",
    "--data=../out/best.pt": "--data={top}/out/best.pt",
    "open('a/../../b')": "open('a/../../b')",
    "s3://bucket/../a": "s3://bucket/../a",
}
"""A word of a command -> what it is in the copy."""


def test_words_of_a_command_that_name_the_folder_name_the_copy(copied: FolderCopy) -> None:
    work = Path(copied.folder)
    (work.parent / "alias").symlink_to(work)
    names = {"work": copied.folder, "copy": copied.copy, "top": str(work.parent)}
    given = [word.format(**names) for word in WORDS]
    assert copied.command(given) == [word.format(**names) for word in WORDS.values()]


def test_variables_that_name_the_folder_name_the_copy(copied: FolderCopy) -> None:
    work, copy = copied.folder, copied.copy
    given = {
        "PWD": work,
        "PYTHONPATH": f"/lib:{work}/src:{work}",
        "OUT": f"{work}/run",
        "URL": f"http://host{work}",
        "OTHER": "/other",
    }
    assert copied.environment(given) == given | {
        "PWD": copy,
        "PYTHONPATH": f"/lib:{copy}/src:{copy}",
        "OUT": f"{copy}/run",
    }


def test_a_shell_in_the_copy_knows_no_other_folder(copied: FolderCopy) -> None:
    copied.make()
    script = f'echo new > "$PWD/run/model.pt"; echo new > {copied.folder}/run/model.pt'
    environment = copied.environment({"PWD": copied.folder, "PATH": os.environ["PATH"]})
    command = copied.command(["sh", "-c", script])
    subprocess.run(command, cwd=copied.copy, env=environment, check=True)
    assert Path(copied.folder, "run", "model.pt").read_text() == "old"
