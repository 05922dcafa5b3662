"""A trial's arguments in the loader that trains, whatever way a script makes it; and in no other."""

import ast
import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch

from tests import ROOT
from tests.watch.watching import Host, Told
from vitprof.watch.connection import GONE
from vitprof.watch.install import install
from vitprof.watch.patching import DATALOADER
from vitprof.watch.trial import KeptSamples, made_of, n_bytes, override_arguments

AS_IT_IS = [0, None, False, False, 2]
ONE = [1, 2, False, False, 2]


def run(host: Host, function: str, wanted: dict[str, Any]) -> Told:
    return host.running("tests.watch.own_scripts").run(
        function, env={"VITPROF_WATCH_OVERRIDES": json.dumps(wanted)}
    )


def made(told: Told) -> dict[str, Any]:
    watched = told.note("environment")[0]["watched"]
    return {
        name.removeprefix("made_"): value
        for name, value in watched.items()
        if name.startswith("made_")
    }


def changed(
    host: Host, function: str, cache_bytes: int | None = None, **arguments: Any
) -> tuple[Any, dict[str, Any]]:
    """What comes of a script in a later trial, made from what its first one told; and what that tells."""
    first = made(run(host, function, {}))
    assert not first["changed"]
    wanted = {"place": first["place"], "nth": None if first["alone"] else first["nth"]}
    told = run(host, function, wanted | {"arguments": arguments, "cache_bytes": cache_bytes})
    assert told.complaint == ""
    return ast.literal_eval(told.returned), made(told)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("in_one_line", [ONE, AS_IT_IS]),
        ("lazily_in_one_line", [ONE, AS_IT_IS]),
        ("each_epoch", [ONE, ONE, AS_IT_IS]),
    ],
)
def test_the_loader_that_trains_and_no_other(
    host: Host, function: str, expected: list[Any]
) -> None:
    found, told = changed(host, function, num_workers=1)
    assert found == expected
    assert told["changed"]


def test_nothing_is_changed_in_the_first_trial_nor_where_no_loader_is_made_there(
    host: Host,
) -> None:
    told = run(host, "in_one_line", {})
    assert ast.literal_eval(told.returned) == [AS_IT_IS, AS_IT_IS]
    assert (made(told)["nth"], made(told)["alone"], made(told)["own_batches"]) == (2, False, False)
    assert made(told)["where"].startswith("own_scripts.py:")
    source = (ROOT / "tests" / "watch" / "own_scripts.py").read_bytes()
    assert made(told)["digest"] == hashlib.sha256(source).hexdigest()
    told = run(
        host,
        "each_epoch",
        {"place": "x", "nth": None, "arguments": {"num_workers": 1}, "cache_bytes": None},
    )
    assert (ast.literal_eval(told.returned), made(told)["changed"]) == ([AS_IT_IS] * 3, False)


def test_a_package_that_makes_the_loader_is_named(host: Host) -> None:
    told = made(run(host, "by_a_package", {}))
    assert (told["by_script"], told["by_package"]) == (False, "timm")
    assert told["where"].startswith("own_scripts.py:")
    assert made(run(host, "in_one_line", {}))["by_package"] == ""


def test_what_needs_workers_is_taken_away_with_them(host: Host) -> None:
    """As the plan of a tournament has it: PyTorch refuses these arguments without workers."""
    none = {
        "prefetch_factor": None,
        "persistent_workers": False,
        "multiprocessing_context": None,
        "timeout": 0,
    }
    assert changed(host, "of_a_class", num_workers=0, **none)[0] == AS_IT_IS
    assert changed(host, "of_a_class", prefetch_factor=4)[0] == [1, 4, False, True, 2]


def test_batches_come_as_they_are_made(host: Host) -> None:
    came, told = changed(host, "as_they_came", in_order=False)
    assert told["changed"]
    assert came[0] == 1.0, "the first sample is late"
    assert sorted(came) == [0.0, 1.0, 2.0, 3.0]


def set_in_workers(host: Host, **wanted: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """What a script's worker says of itself, and its losses: as it is, and in a trial; the first one's facts."""
    first = run(host, "in_workers", {})
    facts = made(first)
    where = {"place": facts["place"], "nth": None, "arguments": {}, "cache_bytes": None}
    told = run(host, "in_workers", where | wanted)
    assert (told.complaint, made(told)["changed"]) == ("", True)
    return ast.literal_eval(first.returned), ast.literal_eval(told.returned), facts


def test_workers_share_tensors_by_a_strategy(host: Host) -> None:
    as_it_is, other, facts = set_in_workers(host, sharing_strategy="file_system")
    assert facts["sharing_strategy"] == as_it_is[0] == "file_descriptor"
    assert other == ["file_system", *as_it_is[1:]], "threads and losses stay"


def test_workers_compute_on_more_threads(host: Host) -> None:
    as_it_is, other, facts = set_in_workers(host, worker_threads=2)
    assert facts["worker_threads"] == 1
    assert as_it_is[1] == 1
    assert other == [as_it_is[0], 2, as_it_is[2]], "losses stay"


def test_an_argument_that_the_scripts_pytorch_lacks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's `Signature` leaves it out without a word: the trial passed for one with it."""
    told = tmp_path / "told"
    monkeypatch.setenv("VITPROF_WATCH_TELL", str(told))
    wanted: dict[str, Any] = {}
    for _ in range(2):

        class Older:
            def __init__(self, dataset: Any, num_workers: int = 0) -> None:
                self.dataset = dataset

        module: Any = ModuleType("dataloader")
        module.DataLoader = Older
        module.IterableDataset = Mock
        monkeypatch.setenv("VITPROF_WATCH_OVERRIDES", json.dumps(wanted))
        override_arguments(module)
        loader = module.DataLoader([1])
        facts = made_of(loader)
        wanted = {"place": facts["made_place"], "nth": None, "arguments": {"in_order": False}}
        wanted["cache_bytes"] = None
    assert (loader.dataset, facts["made_changed"]) == ([1], False)
    (line,) = told.read_text().splitlines()
    why = "its DataLoader takes no in_order, which came with PyTorch 2.6: the script's is "
    assert json.loads(line) == ["problem", f"ValueError: {why}{torch.__version__}"]


def test_images_of_the_changed_loader_cross_as_uint8(monkeypatch: pytest.MonkeyPatch) -> None:
    def collate(samples: Any) -> Any:
        return samples

    wanted: dict[str, Any] = {}
    for _ in range(2):

        class Loader:
            def __init__(self, dataset: Any, collate_fn: Any = None) -> None:
                self.collate_fn = collate_fn

        module: Any = ModuleType("dataloader")
        module.DataLoader = Loader
        module.IterableDataset = Mock
        monkeypatch.setenv("VITPROF_WATCH_OVERRIDES", json.dumps(wanted))
        override_arguments(module)
        loader = module.DataLoader([1], collate_fn=collate)
        facts = made_of(loader)
        wanted = {"place": facts["made_place"], "nth": None, "arguments": {}, "cache_bytes": None}
        wanted["as_uint8"] = True
    assert facts["made_changed"]
    assert loader.collate_fn.as_uint8
    assert loader.collate_fn([1]) == [1], "no worker hands it over"


def test_batches_of_the_scripts_own_stay(host: Host) -> None:
    first = made(run(host, "own_batches", {}))
    assert first["own_batches"]
    wanted = {
        "place": first["place"],
        "nth": None,
        "arguments": {"batch_size": 4},
        "cache_bytes": None,
    }
    assert not made(run(host, "own_batches", wanted))["changed"]


def test_samples_are_kept_with_what_was_random_of_them(host: Host) -> None:
    assert changed(host, "kept", cache_bytes=1_000_000)[0] == [8, True, True, 8]
    (reads, same, _, _), told = changed(host, "kept", cache_bytes=400)
    assert (reads > 8, same) == (True, False), "what does not fit is read again"
    assert told["changed"]


def test_a_trial_that_nobody_watches_any_more_ends(host: Host) -> None:
    told = host.run(hang_up=True, epochs=200, env={"VITPROF_WATCH_OVERRIDES": "{}"})
    assert told.status == -15
    assert told.complaint == f"vitprof: gave up watching ({GONE}); the trial ends\n"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_every_rank_of_a_distributed_job_gets_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: str
) -> None:
    """One of them alone would have other batches than the rest."""
    variables = {"SOCKET": str(tmp_path / "x"), "STEPS": "9", "OVERRIDES": "{}"}
    for name, value in {
        "RANK": rank,
        **{f"VITPROF_WATCH_{name}": value for name, value in variables.items()},
    }.items():
        monkeypatch.setenv(name, value)
    installed = Mock()
    monkeypatch.setattr("vitprof.watch.trial.override_arguments", installed.overrides)
    monkeypatch.setattr("vitprof.watch.patches.install.record_events", installed.hooks)
    monkeypatch.setitem(sys.modules, DATALOADER, module := ModuleType("dataloader"))
    install()
    assert installed.method_calls == [call.hooks(module), call.overrides(module)]


def test_a_loader_without_a_hash_is_made_in_a_trial_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataLoader that is a dataclass has an `__eq__`, and so no hash: the script got a TypeError."""

    class Loader:
        def __init__(self, dataset: Any, batch_size: int = 1) -> None:
            self.dataset = dataset

        __hash__ = None  # type: ignore[assignment]

    module = ModuleType("dataloader")
    module.DataLoader = Loader  # type: ignore[attr-defined]
    module.IterableDataset = Mock  # type: ignore[attr-defined]
    monkeypatch.setenv("VITPROF_WATCH_OVERRIDES", "{}")
    override_arguments(module)
    loaders = [Loader([i]) for i in range(2)]
    assert [made_of(each)["made_nth"] for each in loaders] == [1, 2]


class Numbers:
    names = ("a", "b")

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        self.asked.append(index)
        return np.full(1000, index, dtype=np.uint8)


class InBatches(Numbers):
    def __getitems__(self, indices: list[int]) -> list[np.ndarray[Any, Any]]:
        self.asked.append(tuple(indices))
        return [np.full(1000, i, dtype=np.uint8) for i in indices]


@pytest.mark.parametrize(("made", "asked"), [(Numbers, [2, 0, 1]), (InBatches, [(2, 0), (1,)])])
def test_each_is_read_once_and_anew_in_a_worker(made: type[Numbers], asked: list[Any]) -> None:
    inner = made()
    kept: Any = KeptSamples(inner, 10_000)
    for batch in ([2, 0], [0, 1, 2]):
        assert [int(sample[0]) for sample in kept.__getitems__(batch)] == batch
    assert kept[1][0] == 1
    assert inner.asked == asked
    assert (len(kept), kept.names, isinstance(kept, made)) == (4, ("a", "b"), True)
    copy: Any = pickle.loads(pickle.dumps(kept))
    assert type(copy) is KeptSamples
    copy[1]
    assert copy.asked == [*asked, 1], "a worker gets it empty"


def test_samples_are_kept_by_a_single_index_alone() -> None:
    """A sampler may yield whole batches as lists, or tensors: neither had a hash that says the same
    again, and the TypeError was told as the script's."""
    data = np.arange(8).reshape(4, 2)

    class ByAny:
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return data[index]

    asked: list[Any] = []
    kept = KeptSamples(ByAny(), 10_000)
    for several in ([0, 2], slice(1, 3), np.array([3, 1]), ([0, 1], 1)):
        for _ in range(2):
            assert np.array_equal(kept[several], data[several])
    assert len(asked) == 8, "several samples are another selection each time"
    for one in (2, np.int64(2), torch.tensor(2), torch.tensor(2)):
        assert np.array_equal(kept[one], data[2])
    assert asked[8:] == [2], "the same sample, whatever type its number has"


def test_what_does_not_fit_by_its_size_is_said_once_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    told.touch()
    monkeypatch.setenv("VITPROF_WATCH_TELL", str(told))
    inner = Numbers()
    kept = KeptSamples(inner, 2_500)
    for _ in range(2):
        assert [int(kept[i][0]) for i in range(4)] == [0, 1, 2, 3]
    assert inner.asked == [0, 1, 2, 3, 2, 3]
    (line,) = told.read_text().splitlines()
    assert json.loads(line)[0] == "notice"
    assert re.search("does not fit: .*after 2 of 4 samples", line)
    assert (
        n_bytes(
            {"image": np.zeros((3, 8), dtype=np.float32), "more": [np.zeros(4, dtype=np.uint8)] * 2}
        )
        == 104
    )
    assert 0 < n_bytes((3, "text")) < 200


SCRIPT = """
import os, sys, tempfile
from vitprof.watch.trial import report_written_files
report_written_files()
os.chdir("below")
os.makedirs("../elsewhere")
open("log.txt", "a").close()
open("log.txt", "a").close()
open("read.txt").close()
open(os.devnull, "w").close()
open("../elsewhere/out.txt", "w").close()
open("../elsewhere/out.txt", "w").close()
open("../elsewhere/new", "w").close()
os.replace("../elsewhere/new", "../kept.txt")
os.remove("../elsewhere/out.txt")
os.remove("../gone.txt")
tempfile.NamedTemporaryFile().close()
os.makedirs("../__pycache__")
open("../__pycache__/a.pyc", "w").close()
if os.fork() == 0:
    os.close(os.open("../forked.bin", os.O_WRONLY | os.O_CREAT))
    os._exit(0)
os.wait()
import torch
torch.save([1], "../saved.pt")
os._exit(0)  # quicker than to take PyTorch down
"""


def test_each_file_elsewhere_that_is_written_or_deleted_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    told = tmp_path / "below" / "told"
    for file in (told, tmp_path / "below" / "read.txt", tmp_path / "gone.txt"):
        file.touch()
    variables = {
        "VITPROF_WATCH_TELL": str(told),
        "VITPROF_WATCH_OPENED_UNDER": str(tmp_path / "below"),
    }
    variables["PYTHONPATH"] = str(ROOT)
    subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, cwd=tmp_path, env={**os.environ, **variables}
    )
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    shown = [path for _, path in lines if os.path.lexists(path) or path.endswith("(deleted)")]
    names = ("kept.txt", "gone.txt (deleted)", "forked.bin", "saved.pt")
    assert shown == [f"{tmp_path}/{name}" for name in names]
