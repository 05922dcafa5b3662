"""Patches of scripts in twenty shapes and more: the lines that change, or what to do by hand."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.export.patch.scripts import changed_lines, facts, own_script, patch_of
from vitprof.config.own_script import OwnScript
from vitprof.errors import ConfigError
from vitprof.export.patch.calls import POSITIONAL
from vitprof.export.patch.wanted import NoPatch

IMPORT = "from torch.utils.data import DataLoader\n"
WITH_WORKERS = {"num_workers": 2, "prefetch_factor": 2}
FOUR = ("workers=4",)
PEP_701 = """print(f"{'samples'!r:>{"9"}} and {"more"}")
loader = DataLoader(samples, batch_size=8)
"""


class Shape:
    """A script, what its loader was given, what is varied, and the lines that a patch takes out and puts in."""

    def __init__(
        self, source: str | bytes, given: str, vary: tuple[str, ...], expected: str, **more: Any
    ) -> None:
        self.source = source if isinstance(source, bytes) else (IMPORT + source).encode()
        self.given = given
        self.vary = vary
        self.expected = expected.encode().removeprefix(b"\n").removesuffix(b"\n").split(b"\n")
        self.more = more

    def script(self, folder: Path) -> OwnScript:
        return own_script(folder, self.source, self.given, *self.vary, **self.more)


SHAPES = {
    "one line": Shape(
        "loader = DataLoader(samples, batch_size=8, shuffle=True)  # of train\n",
        "batch_size shuffle",
        ("workers=4", "prefetch_factor=4"),
        """
-loader = DataLoader(samples, batch_size=8, shuffle=True)  # of train
+loader = DataLoader(samples, batch_size=8, shuffle=True, num_workers=4, prefetch_factor=4)  # of train
""",
    ),
    "in order, as without the argument": Shape(
        "loader = DataLoader(samples, batch_size=8)\n",
        "batch_size",
        ("workers=4", "in_order=on"),
        """
-loader = DataLoader(samples, batch_size=8)
+loader = DataLoader(samples, batch_size=8, num_workers=4)
""",
    ),
    "in order, which it was not": Shape(
        "loader = DataLoader(samples, batch_size=8, in_order=False)\n",
        "batch_size in_order",
        ("workers=4", "in_order=on"),
        """
-loader = DataLoader(samples, batch_size=8, in_order=False)
+loader = DataLoader(samples, batch_size=8, in_order=True, num_workers=4)
""",
        in_order=False,
    ),
    "the dataset alone": Shape(
        "loader = DataLoader(samples)\n",
        "",
        FOUR,
        """
-loader = DataLoader(samples)
+loader = DataLoader(samples, num_workers=4)
""",
    ),
    "one line with a comma at its end": Shape(
        "loader = DataLoader(samples, batch_size=8, )\n",
        "batch_size",
        FOUR,
        """
-loader = DataLoader(samples, batch_size=8, )
+loader = DataLoader(samples, batch_size=8, num_workers=4, )
""",
    ),
    "many lines, replaced": Shape(
        """loader = DataLoader(
    samples,  # all of them
    batch_size=8,
    # of the machine at home
    num_workers=2,  # two cores
    prefetch_factor=2,  # the default
    shuffle=True,
)
""",
        "batch_size num_workers prefetch_factor shuffle",
        ("workers=4", "prefetch_factor=4"),
        """
-    num_workers=2,  # two cores
-    prefetch_factor=2,  # the default
+    num_workers=4,  # two cores
+    prefetch_factor=4,  # the default
""",
        **WITH_WORKERS,
    ),
    "many lines, added behind comments": Shape(
        """def loaders():
    return DataLoader(
        samples,
        batch_size=8,  # of the paper
        # pin_memory=True,
    )
""",
        "batch_size",
        FOUR,
        """
+        num_workers=4,
""",
    ),
    "many lines, removed": Shape(
        """loader = DataLoader(
    samples,
    batch_size=8,
    num_workers=2,  # two cores
    # kept between epochs
    persistent_workers=True,
    prefetch_factor=4,  # of the machine at home
)
""",
        "batch_size num_workers persistent_workers prefetch_factor",
        ("workers=0",),
        """
-    num_workers=2,  # two cores
+    num_workers=0,  # two cores
-    persistent_workers=True,
-    prefetch_factor=4,  # of the machine at home
""",
        **WITH_WORKERS,
    ),
    "one line, removed in the middle and at the end": Shape(
        "loader = DataLoader(samples, prefetch_factor=4, num_workers=2, persistent_workers=True)\n",
        "prefetch_factor num_workers persistent_workers",
        ("workers=0",),
        """
-loader = DataLoader(samples, prefetch_factor=4, num_workers=2, persistent_workers=True)
+loader = DataLoader(samples, num_workers=0)
""",
        **WITH_WORKERS,
    ),
    "removed before a comment that stays": Shape(
        """loader = DataLoader(samples, num_workers=2, prefetch_factor=4,  # of the machine at home
                    shuffle=True, persistent_workers=True)
""",
        "num_workers prefetch_factor shuffle persistent_workers",
        ("workers=0",),
        """
-loader = DataLoader(samples, num_workers=2, prefetch_factor=4,  # of the machine at home
-                    shuffle=True, persistent_workers=True)
+loader = DataLoader(samples, num_workers=0,  # of the machine at home
+                    shuffle=True)
""",
        **WITH_WORKERS,
    ),
    "no comma at the end": Shape(
        """loader = DataLoader(
    samples,
    batch_size=8  # of the paper
)
""",
        "batch_size",
        FOUR,
        """
-    batch_size=8  # of the paper
+    batch_size=8,  # of the paper
+    num_workers=4
""",
    ),
    "lines below the parenthesis": Shape(
        """loader = DataLoader(samples,  # all of them
                    batch_size=8)
""",
        "batch_size",
        FOUR,
        """
-                    batch_size=8)
+                    batch_size=8,
+                    num_workers=4)
""",
    ),
    "spaces around equal signs": Shape(
        """loader = DataLoader(
    samples, batch_size = 8, shuffle = True
)
""",
        "batch_size shuffle",
        FOUR,
        """
-    samples, batch_size = 8, shuffle = True
+    samples, batch_size = 8, shuffle = True, num_workers = 4
""",
    ),
    "a module under another name": Shape(
        b"import torch.utils.data as tud\nloader = tud.DataLoader(samples)\n",
        "",
        FOUR,
        """
-loader = tud.DataLoader(samples)
+loader = tud.DataLoader(samples, num_workers=4)
""",
    ),
    "a class under another name": Shape(
        b"from torch.utils.data import DataLoader as DL\nloader = DL(samples)\n",
        "",
        FOUR,
        """
-loader = DL(samples)
+loader = DL(samples, num_workers=4)
""",
        made_where="train.py:2",
    ),
    "by its whole name, with positions": Shape(
        b"import torch\nloader = torch.utils.data.DataLoader(samples, 8, True)\n",
        "batch_size shuffle",
        FOUR,
        """
-loader = torch.utils.data.DataLoader(samples, 8, True)
+loader = torch.utils.data.DataLoader(samples, 8, True, num_workers=4)
""",
    ),
    "workers by position": Shape(
        "loader = DataLoader(samples, 8, True, None, None, 2, collate)\n",
        "batch_size shuffle sampler batch_sampler num_workers collate_fn",
        FOUR,
        """
-loader = DataLoader(samples, 8, True, None, None, 2, collate)
+loader = DataLoader(samples, 8, True, None, None, 4, collate)
""",
        **WITH_WORKERS,
    ),
    "a timeout by position": Shape(
        "loader = DataLoader(samples, 8, True, None, None, 2, None, False, False, 5)\n",
        "batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last timeout",
        ("workers=0",),
        """
-loader = DataLoader(samples, 8, True, None, None, 2, None, False, False, 5)
+loader = DataLoader(samples, 8, True, None, None, 0, None, False, False, 0)
""",
        **WITH_WORKERS,
    ),
    "two loaders": Shape(
        """train = DataLoader(samples, batch_size=8)
val = DataLoader(others, batch_size=8)
""",
        "batch_size",
        FOUR,
        """
-val = DataLoader(others, batch_size=8)
+val = DataLoader(others, batch_size=8, num_workers=4)
""",
        made_where="train.py:3",
    ),
    "a method": Shape(
        """class Data(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.train, batch_size=8, num_workers=2)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=8, num_workers=2)
""",
        "batch_size num_workers",
        FOUR,
        """
-        return DataLoader(self.train, batch_size=8, num_workers=2)
+        return DataLoader(self.train, batch_size=8, num_workers=4)
""",
        **WITH_WORKERS,
    ),
    "tabs": Shape(
        "def main():\n\tloader = DataLoader(\n\t\tsamples,\n\t\tbatch_size=8,\n\t)\n",
        "batch_size",
        FOUR,
        "+\t\tnum_workers=4,",
    ),
    "CRLF": Shape(
        (IMPORT + "loader = DataLoader(\n    samples,\n    batch_size=8\n)\n")
        .replace("\n", "\r\n")
        .encode(),
        "batch_size",
        FOUR,
        "-    batch_size=8\r\n+    batch_size=8,\r\n+    num_workers=4\r",
    ),
    "a decorated function": Shape(
        """@timed(DataLoader.__name__, num_workers=2)
def loaders(num_workers=2):
    return DataLoader(samples, num_workers=2)
""",
        "num_workers",
        FOUR,
        """
-    return DataLoader(samples, num_workers=2)
+    return DataLoader(samples, num_workers=4)
""",
        **WITH_WORKERS,
    ),
    "f-strings": Shape(
        """print(f"{len(samples)=} {'many' if samples else 'no'} samples{'':>{width}}")
loader = DataLoader(samples, batch_size=8)
""",
        "batch_size",
        FOUR,
        """
-loader = DataLoader(samples, batch_size=8)
+loader = DataLoader(samples, batch_size=8, num_workers=4)
""",
    ),
    "of a notebook": Shape(
        b"""#!/usr/bin/env python
# coding: utf-8

# In[1]:


from torch.utils.data import *

# In[ ]:


get_ipython().run_line_magic('matplotlib', 'inline')
loader = DataLoader(samples, batch_size=8); len(loader)

# In[3]:


""",
        "batch_size",
        FOUR,
        """
-loader = DataLoader(samples, batch_size=8); len(loader)
+loader = DataLoader(samples, batch_size=8, num_workers=4); len(loader)
""",
    ),
    "Latin-1": Shape(
        b"# -*- coding: latin-1 -*-\n" + IMPORT.encode() + b'print("caf\xe9")\n'
        b"loader = DataLoader(samples, batch_size=8)\n",
        "batch_size",
        FOUR,
        """
-loader = DataLoader(samples, batch_size=8)
+loader = DataLoader(samples, batch_size=8, num_workers=4)
""",
    ),
    "a byte order mark": Shape(
        b"\xef\xbb\xbf"
        + IMPORT.encode()
        + 'print("café")\nloader = DataLoader(samples)\n'.encode(),
        "",
        FOUR,
        """
-loader = DataLoader(samples)
+loader = DataLoader(samples, num_workers=4)
""",
    ),
    "no line end, a form feed, a line separator": Shape(
        "\f\nprint('\u2028')\nloader = DataLoader(samples)",
        "",
        FOUR,
        """
-loader = DataLoader(samples)
+loader = DataLoader(samples, num_workers=4)
""",
    ),
    "texts in single quotes": Shape(
        "print('a')\nloader = DataLoader(samples, num_workers=2)\n",
        "num_workers",
        ("start_method=spawn",),
        """
-loader = DataLoader(samples, num_workers=2)
+loader = DataLoader(samples, num_workers=2, multiprocessing_context='spawn')
""",
        **WITH_WORKERS,
    ),
    "a class derived from it": Shape(
        """class Mine(DataLoader):
    pass


loader = Mine(samples, batch_size=8)
""",
        "batch_size",
        FOUR,
        """
-loader = Mine(samples, batch_size=8)
+loader = Mine(samples, batch_size=8, num_workers=4)
""",
        made_where="train.py:6",
    ),
    "within other calls, in lines": Shape(
        """for batch in tqdm(
    DataLoader(
        TensorDataset(samples, batch_size=8),
        batch_size=8,
    ),
):
    train(batch)
""",
        "batch_size",
        FOUR,
        "+        num_workers=4,",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_lines_that_change(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    patch = patch_of(shape.script(tmp_path))
    assert changed_lines(patch) == shape.expected
    assert patch.remarks == ()
    assert (patch.file.path, patch.file.changed) == (tmp_path / "train.py", False)


@pytest.mark.parametrize("program", [("patch", "-p0", "--silent"), ("git", "apply", "-p0", "-")])
def test_programs_take_the_diffs(program: tuple[str, ...], tmp_path: Path) -> None:
    """One diff of all shapes, each in a folder of its own."""
    whole = b""
    after = {}
    for number, shape in enumerate(SHAPES.values()):
        folder = tmp_path / f"shape {number}"
        folder.mkdir()
        patch = patch_of(shape.script(folder))
        whole += patch.diff(f"{folder.name}/train.py")
        after[folder] = patch.after
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    ended = subprocess.run(
        program, cwd=tmp_path, input=whole, env=environment, check=False, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr
    for folder, data in after.items():
        assert (folder / "train.py").read_bytes() == data


def test_f_strings_of_a_newer_python(tmp_path: Path) -> None:
    script = own_script(tmp_path, (IMPORT + PEP_701).encode(), "batch_size", *FOUR)
    if sys.version_info >= (3, 12):
        (_, line) = changed_lines(patch_of(script))
        assert line == b"+loader = DataLoader(samples, batch_size=8, num_workers=4)"
        return
    with pytest.raises(NoPatch) as refused:
        patch_of(script)
    (line_,) = refused.value.lines
    assert line_.startswith(
        "no patch: Python 3.11, with which vitprof runs, does not take train.py: line 2: "
    )


PARSER = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-j", "--workers", type=int, default=2)
parser.add_argument("--pin", dest="pin_memory", action="store_true")
args = parser.parse_args()
"""
ELSEWHERE = "no patch: the DataLoader in line {} of train.py has values from elsewhere"
BY_HAND: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any], list[str]]] = {
    "an option of argparse": (
        f"{PARSER}loader = DataLoader(samples, num_workers=args.workers)\n",
        "num_workers",
        ("workers=4", "persistent_workers=on"),
        WITH_WORKERS,
        [
            ELSEWHERE.format(7),
            "num_workers is args.workers, line 7: run the script with --workers 4",
            "and give it persistent_workers=True",
        ],
    ),
    "a switch of argparse": (
        f"{PARSER}loader = DataLoader(\n    samples, pin_memory=args.pin_memory\n)\n",
        "pin_memory",
        ("pin_memory=on",),
        {},
        [
            ELSEWHERE.format(7),
            "pin_memory is args.pin_memory, line 8: run the script with --pin",
        ],
    ),
    "an option that a variable has": (
        f"{PARSER}workers = args.workers\nloader = DataLoader(samples, 8, num_workers=workers)\n",
        "batch_size num_workers",
        FOUR,
        {},
        [
            ELSEWHERE.format(8),
            "num_workers is workers, line 8: workers is args.workers, line 7: "
            "run the script with --workers 4",
        ],
    ),
    "an option that the script divides": (
        f"{PARSER}args.workers = args.workers // gpus\nDataLoader(samples, num_workers=args.workers)\n",
        "num_workers",
        FOUR,
        {},
        [
            ELSEWHERE.format(8),
            "num_workers is args.workers, line 8: make it 4 there: line 7 sets it, too",
        ],
    ),
    "a constant": (
        "WORKERS = 2\ndef main():\n    return DataLoader(samples, num_workers=WORKERS)\n",
        "num_workers",
        FOUR,
        {},
        [ELSEWHERE.format(4), "num_workers is WORKERS, line 4: set WORKERS = 4 in line 2"],
    ),
    "a parameter": (
        "def make(samples, workers=2):\n    return DataLoader(samples, num_workers=workers)\n",
        "num_workers",
        FOUR,
        {},
        [ELSEWHERE.format(3), "num_workers is workers, line 3: call make with workers=4"],
    ),
    "a config": (
        "loader = DataLoader(samples, num_workers=cfg.data.workers, prefetch_factor=2)\n",
        "num_workers prefetch_factor",
        ("workers=0",),
        WITH_WORKERS,
        [
            ELSEWHERE.format(2),
            "num_workers is cfg.data.workers, line 2: make it 0 there",
            "and leave prefetch_factor out",
        ],
    ),
    "the cores": (
        "import os\nloader = DataLoader(samples, num_workers=min(8, os.cpu_count()))\n",
        "num_workers",
        FOUR,
        {},
        [
            ELSEWHERE.format(3),
            "num_workers is min(8, os.cpu_count()), line 3: make it 4 there",
        ],
    ),
    "a dict": (
        "options = {'num_workers': 2}\nloader = DataLoader(samples, batch_size=8, **options)\n",
        "batch_size num_workers",
        FOUR,
        {},
        [
            "no patch: arguments of the DataLoader in line 3 of train.py come from **options",
            "see that they come to num_workers=4",
        ],
    ),
    "a class with its own beginning": (
        """class Mine(DataLoader):
    def __init__(self, samples):
        super().__init__(samples, batch_size=8)
""",
        "batch_size",
        FOUR,
        {"made_where": "train.py:4"},
        [
            "no patch: line 4 of train.py begins a class derived from DataLoader, for all its loaders",
            "see {folder}/train.py:4, and give its DataLoader the arguments yourself",
        ],
    ),
    "a part of a call": (
        """from functools import partial
make = partial(DataLoader, shuffle=True)
loader = make(samples, batch_size=8)
""",
        "batch_size shuffle",
        FOUR,
        {"made_where": "train.py:4"},
        [
            "no patch: line 4 of train.py, which made the DataLoader, has no call with the arguments "
            "that it had",
            "see {folder}/train.py:4, and give its DataLoader the arguments yourself",
        ],
    ),
    "two in a line": (
        "train, val = DataLoader(samples, 8), DataLoader(others, 8)\n",
        "batch_size",
        FOUR,
        {},
        [
            "no patch: line 2 of train.py, which made the DataLoader, has several calls that it may be",
            "see {folder}/train.py:2, and give its DataLoader the arguments yourself",
        ],
    ),
    "a framework": (
        "trainer.train()\n",
        "batch_size num_workers",
        FOUR,
        {"made_by_script": False, "framework": "transformers"},
        [
            "no patch: transformers makes the DataLoader, called from train.py:1; write "
            "TrainingArguments(..., dataloader_num_workers=4)"
        ],
    ),
    "timm": (
        "loader = create_loader(samples, 224, 8)\n",
        "batch_size num_workers",
        FOUR,
        {"made_by_script": False, "made_by_package": "timm"},
        [
            "no patch: timm makes the DataLoader, called from train.py:1; write "
            "create_loader(..., num_workers=4)"
        ],
    ),
    "a package": (
        "loader = prepare(DataLoader(samples))\n",
        "batch_size",
        FOUR,
        {"made_by_script": False},
        [
            "no patch: a package makes the DataLoader, called from train.py:2; write "
            "DataLoader(..., num_workers=4)"
        ],
    ),
    "samples kept": (
        "loader = DataLoader(samples)\n",
        "",
        ("decode_cache=ram",),
        {},
        [
            "no patch: no argument of the DataLoader makes that; do by hand: keep the Dataset's samples "
            "in memory after their first reading"
        ],
    ),
    "another batch size": (
        "loader = DataLoader(samples, batch_size=8)\n",
        "batch_size",
        ("batch_size=16",),
        {},
        [
            "no patch: no argument of the DataLoader makes that; do by hand: batch_size=16, which also "
            "changes how the model learns"
        ],
    ),
    "no file of that name": (
        "loader = DataLoader(samples)\n",
        "",
        FOUR,
        {"made_where": "data.py:2"},
        ["no patch: data.py is not in {folder}, nor in a folder below it"],
    ),
    "a cell of a notebook": (
        "loader = DataLoader(samples)\n",
        "",
        FOUR,
        {"made_where": "<stdin>:2", "made_digest": ""},
        ["no patch: <stdin> is not in {folder}, nor in a folder below it"],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_what_no_patch_makes_is_said(name: str, tmp_path: Path) -> None:
    source, given, vary, more, lines = BY_HAND[name]
    script = own_script(tmp_path, (IMPORT + source).encode(), given, *vary, **more)
    with pytest.raises(NoPatch) as refused:
        patch_of(script)
    assert list(refused.value.lines) == [line.replace("{folder}", str(tmp_path)) for line in lines]


@pytest.mark.parametrize("given", ["batch_size", "batch_size sampler"])
def test_lightning_stands_between_a_hook_and_pytorch(given: str, tmp_path: Path) -> None:
    """The frame that calls `DataLoader.__init__` is Lightning's in `train_dataloader`; where it makes a loader of its
    own, that has other arguments."""
    source = f"{IMPORT}def train_dataloader():\n    return DataLoader(samples, batch_size=8)\n"
    by_lightning = {"made_by_script": False, "framework": "lightning"}
    script = own_script(tmp_path, source.encode(), given, *FOUR, **by_lightning)
    if given == "batch_size":
        assert b"num_workers=4" in changed_lines(patch_of(script))[1]
        return
    with pytest.raises(
        NoPatch, match="no patch: lightning makes the DataLoader, called from train"
    ):
        patch_of(script)


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("decoder=simplejpeg", "decode JPEG files with Image.fromarray(simplejpeg.decode_jpeg("),
        ("uint8=on", "hand floats of whole numbers / 255 over as uint8"),
        ("sharing_strategy=file_system", "call torch.multiprocessing.set_sharing_strategy"),
        ("worker_threads=1", "call torch.set_num_threads(1)"),
    ],
)
def test_what_no_argument_makes_is_said_in_words(vary: str, said: str, tmp_path: Path) -> None:
    script = own_script(
        tmp_path,
        (IMPORT + "DataLoader(samples, num_workers=2)\n").encode(),
        "num_workers",
        vary,
        num_workers=2,
    )
    with pytest.raises(NoPatch) as reason:
        patch_of(script)
    assert str(reason.value).startswith(
        f"no patch: no argument of the DataLoader makes that; do by hand: {said}"
    )


def test_what_is_measured_together_and_no_argument_makes_is_a_remark(tmp_path: Path) -> None:
    vary = ("workers=4", "batch_size=16", "pack=on")
    script = own_script(
        tmp_path, (IMPORT + "DataLoader(samples, batch_size=8)\n").encode(), "batch_size", *vary
    )
    patch = patch_of(script)
    assert changed_lines(patch)[1] == b"+DataLoader(samples, batch_size=8, num_workers=4)"
    (remark,) = patch.remarks
    assert remark.startswith(
        "the patch is a part of what was measured together; do by hand: batch_size=16, which also "
        "changes how the model learns and pack each batch into one tensor"
    )


SHARED = {
    "def make(samples):\n    return DataLoader(samples)\n\n\na = make(x)\nb = make(y)\n": (
        "make, which makes it, is called in lines 6, 7"
    ),
    "loaders = {name: DataLoader(sets[name]) for name in sets}\n": "it is made in a loop over name",
    "for samples in sets:\n    DataLoader(samples)\n": "it is made in a loop over samples",
}


@pytest.mark.parametrize("source", SHARED)
def test_a_call_that_makes_other_loaders_too_is_named(source: str, tmp_path: Path) -> None:
    (remark,) = patch_of(own_script(tmp_path, (IMPORT + source).encode(), "", *FOUR)).remarks
    assert remark == (
        "other loaders may change, too, and trials changed only the one that trains: "
        f"{SHARED[source]}"
    )


TWO = IMPORT + "a = DataLoader(samples, batch_size=8)\nb = DataLoader(others, batch_size=8)\n"


class TestAChangedFile:
    """The line that made the loader may be another one by now."""

    def changed(self, folder: Path, now: str, given: str = "batch_size") -> OwnScript:
        before = IMPORT + "a = DataLoader(samples, batch_size=8)\n"
        script = own_script(folder, before.encode(), given, *FOUR)
        (folder / "train.py").write_text(now)
        return script

    def test_its_only_loader_is_patched(self, tmp_path: Path) -> None:
        now = IMPORT + "\n\na = DataLoader(samples, batch_size=8)\nb = DataLoader(others)\n"
        patch = patch_of(self.changed(tmp_path, now))
        assert (patch.line, patch.file.changed, patch.remarks) == (4, True, ())

    def test_a_patched_one_has_it_already(self, tmp_path: Path) -> None:
        now = IMPORT + "a = DataLoader(samples, batch_size=8, num_workers=4)\n"
        patch = patch_of(self.changed(tmp_path, now))
        assert (patch.is_empty, patch.diff("train.py")) == (True, b"")

    def test_of_several_the_line_is_asked_for(self, tmp_path: Path) -> None:
        script = self.changed(tmp_path, TWO)
        with pytest.raises(ConfigError) as asked:
            patch_of(script)
        assert (asked.value.field, asked.value.value) == ("line", "none")
        assert asked.value.allowed == (
            "train.py has 2 calls of DataLoader that it may be: line 2 (a), line 3 (b); give the line "
            "to change"
        )
        assert patch_of(script, 3).line == 3
        with pytest.raises(ConfigError, match="no call of DataLoader that begin there"):
            patch_of(script, 1)

    def test_names_and_shuffling_may_tell(self, tmp_path: Path) -> None:
        script = self.changed(tmp_path, TWO.replace("a =", "train_set.loader ="))
        patch = patch_of(script)
        assert (patch.line, patch.remarks) == (
            2,
            (
                "of 2 calls that fit, that in line 2 is taken, by its name or shuffling; --line takes "
                "another one",
            ),
        )
        shuffled = TWO.replace("others, batch_size=8", "others, 8, shuffle=True")
        shuffled = shuffled.replace("samples, batch_size=8", "samples, 8, shuffle=False")
        script = self.changed(tmp_path, shuffled, given="batch_size shuffle")
        assert patch_of(script).line == 3

    def test_a_call_with_other_arguments_is_not_taken_for_it(self, tmp_path: Path) -> None:
        """It may be another file of the same name."""
        script = self.changed(tmp_path, TWO, given="batch_size sampler")
        with pytest.raises(ConfigError, match="none of them with the arguments that it had; give"):
            patch_of(script)

    def test_the_file_that_the_command_names_goes_before_others_of_its_name(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "train.py").write_text(TWO)
        script = self.changed(tmp_path, f"{IMPORT}\na = DataLoader(samples, batch_size=8)\n")
        assert patch_of(script).file.path == tmp_path / "train.py"

    def test_one_without_the_workers_that_were_measured_is_not_patched(
        self, tmp_path: Path
    ) -> None:
        """PyTorch refuses a prefetch_factor without workers."""
        before = f"{IMPORT}a = DataLoader(samples, num_workers=2)\n"
        vary = ("prefetch_factor=4",)
        script = own_script(tmp_path, before.encode(), "num_workers", *vary, **WITH_WORKERS)
        (tmp_path / "train.py").write_text(before.replace("=2", "=0"))
        with pytest.raises(NoPatch, match="has num_workers=0, and the tournament was run with 2"):
            patch_of(script)


def test_in_an_unchanged_file_no_other_line_is_taken(tmp_path: Path) -> None:
    script = own_script(tmp_path, TWO.encode(), "batch_size", *FOUR)
    assert patch_of(script, 2).line == 2
    with pytest.raises(ConfigError, match="the loader that trains is made in line 2 of"):
        patch_of(script, 3)


def test_a_loader_in_another_file_is_found_by_its_content(tmp_path: Path) -> None:
    source = (IMPORT + "loader = DataLoader(samples)\n").encode()
    script = own_script(tmp_path, b"import data\n", "", *FOUR)
    for folder, text in (("a", b"# another\n"), ("b/c", source), (".hidden", source)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "data.py").write_bytes(text)
    loader = facts(source, "", name="data.py")
    script = OwnScript(script.command, script.directory, script.vary, loader)
    assert patch_of(script).file.path == tmp_path / "b" / "c" / "data.py"
    (tmp_path / "a" / "data.py").write_bytes(source)
    with pytest.raises(NoPatch, match="no patch: which of these copies ran is not known: "):
        patch_of(script)


def test_a_loader_of_which_no_line_is_known_is_looked_for(tmp_path: Path) -> None:
    """As in a tournament of a version that noted none."""
    script = own_script(tmp_path, TWO.replace("b =", "train =").encode(), "", *FOUR)
    loader = {"num_workers": 0, "batch_size": 8}
    script = OwnScript(("python", "-m", "train"), script.directory, script.vary, loader)
    patch = patch_of(script)
    assert (patch.line, patch.file.changed) == (3, None)


def test_positions_are_those_of_pytorch() -> None:
    names = [
        name
        for name, parameter in inspect.signature(DataLoader.__init__).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    assert tuple(names[1:]) == POSITIONAL
