"""Images in a form that has no way of its own to read many at once."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.storage.preparing import copy_of, images_of, opened
from tests.engine_fixtures import error_in_one_line
from vitprof.errors import SampleError
from vitprof.forms import lmdb

pytestmark = pytest.mark.usefixtures("shared_home")


def test_pixels_are_read_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of("lmdb", tmp_path)
    monkeypatch.delattr(lmdb.Reader, "read_rows")
    storage = opened("lmdb", root)
    chosen = [5, 599, 0, 5]
    assert np.array_equal(storage.read(torch.tensor(chosen)).numpy(), images_of()[chosen])
    read = lmdb.Reader.read

    def cut(reader: lmdb.Reader, number: int) -> list[bytes]:
        (value,) = read(reader, number)
        return [value[:783]] if number == 3 else [value]

    monkeypatch.setattr(lmdb.Reader, "read", cut)
    with error_in_one_line(SampleError, match=r"train-000003 holds 783 bytes, not 784; delete"):
        storage.read(torch.tensor([2, 3]))
    storage.close()
