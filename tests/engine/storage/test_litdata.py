"""LitData's chunks: LitData reads them, too, and what is damaged is named."""

import gc
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.engine.storage.preparing import (
    PHOTOS,
    copy_of,
    expected,
    open_files,
    opened,
    refused,
    source_of,
)
from tests.engine_fixtures import error_in_one_line
from vitprof.engine.storage import contract, format_of
from vitprof.errors import SampleError

pytest.importorskip("litdata")
pytestmark = pytest.mark.usefixtures("shared_home")
NAME = "litdata"


def test_litdatas_own_dataset_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import litdata

    monkeypatch.setattr(
        "litdata.streaming.dataset._check_version_and_prompt_upgrade", lambda _: None
    )  # asks PyPI
    dataset = litdata.StreamingDataset(str(copy_of(NAME, tmp_path) / "train"), shuffle=False)
    assert [bytes(sample["jpg"]) for sample in dataset] == source_of(PHOTOS).encoded(0, 20)


@pytest.fixture
def in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a copy in chunks of 8 samples, so that there are three."""
    from vitprof.forms import litdata

    def of_eight(folder: str, **_: Any) -> Any:
        return whole(folder, chunk_size=8)

    root, whole = copy_of(NAME, tmp_path), litdata.BinaryWriter
    monkeypatch.setattr(litdata, "BinaryWriter", of_eight)
    monkeypatch.setenv(
        "WORLD_SIZE", "2"
    )  # as torchrun sets it: LitData would wait for the other one
    source = source_of(PHOTOS)
    facts = contract.SplitFacts("train", 20, (224, 224, 3), source.ids, source.labels)
    writer = format_of(NAME).open_writer(root, facts)
    writer.add(0, source.encoded(0, 5))
    writer.add(5, source.encoded(5, 20))
    writer.finish()
    monkeypatch.delenv("WORLD_SIZE")
    return root


def test_samples_of_several_chunks_in_any_order(in_chunks: Path) -> None:
    assert len(list((in_chunks / "train").glob("*.bin"))) == 3
    wanted = expected(NAME)
    with closing(opened(NAME, in_chunks)) as storage:
        for index in [19, 0, 8, 7, 16, 15, 0, *range(20)]:
            assert storage.read_encoded(index) == wanted[index]
        assert len(set(open_files(in_chunks))) == 3
    assert open_files(in_chunks) == []


def test_what_is_damaged_is_named(in_chunks: Path) -> None:
    first, index = (
        sorted((in_chunks / "train").glob("*.bin"))[0],
        in_chunks / "train" / "index.json",
    )
    with closing(opened(NAME, in_chunks)) as storage:
        os.truncate(first, 1000)
        assert storage.read_encoded(8) == expected(NAME)[8]
        with error_in_one_line(SampleError, match=r"train: \S+ cannot be read \("):
            storage.read_encoded(3)
    index.write_text(
        json.dumps((whole := json.loads(index.read_text())) | {"chunks": whole["chunks"][1:]})
    )
    refused_at_first_sample(in_chunks, r"train holds 12 samples, not 20")
    for change in (lambda: index.write_text("nonsense"), index.unlink):
        change()
        refused_at_first_sample(in_chunks, "train cannot be read")
    refused(NAME, in_chunks / "nowhere", "nowhere", "No such file")
    gc.collect()  # a read that failed leaves LitData's reader in a cycle with the error
    assert open_files(in_chunks) == []


def refused_at_first_sample(root: Path, words: str) -> None:
    with error_in_one_line(contract.DataError, match=words), closing(opened(NAME, root)) as storage:
        storage.read_encoded(0)
