"""What a form costs, and why one was not tried."""

import math
from dataclasses import replace

import pytest

from vitprof.experiments.script_data.stored_forms import (
    Conversion,
    StoredForm,
    changed_words,
    order_words,
    what_words,
)


def test_the_time_of_a_sample_has_an_interval() -> None:
    same = StoredForm(seconds=(0.002,) * 10).sample_s
    assert (same.value, same.low, same.high) == pytest.approx((0.002, 0.002, 0.002))
    differs = StoredForm(seconds=(1.0, 2.0, 3.0)).sample_s
    assert (differs.value, differs.low) == (2.0, 0.0)
    assert differs.high == pytest.approx(2.0 + 4.3 / math.sqrt(3))
    assert math.isnan(StoredForm(seconds=(1.0,)).sample_s.high)


def test_words() -> None:
    lmdb, small = StoredForm(payload="FilesOf"), StoredForm(payload="Smaller")
    forms = {
        "lmdb": lmdb,
        "jpeg": small,
        "lance": StoredForm("not here"),
        "arrow": StoredForm("not here"),
    }
    made = Conversion("whole", 10, 1000, {"a": 20, "b": 30}, forms, 4.0, {})
    assert (list(made.stored), made.file_bytes, made.scaled(7)) == (["lmdb", "jpeg"], 50.0, 700)
    assert replace(made, files=dict.fromkeys("abcde", 10)).file_bytes == 5000, "a file for each"
    assert made.convert_s(StoredForm(seconds=(0.1, 0.1))) == pytest.approx((104.0, 104.0, 104.0))
    assert made.not_stored() == ["not tried: lance, arrow: not here"]
    assert (what_words("lmdb", lmdb), changed_words(lmdb)) == ("lmdb (image files)", "the same")
    assert (changed_words(small), order_words({"lmdb": 1})) == ("changed", "")
    assert order_words({"webdataset": 1}).endswith("; WebDataset's own reader shuffles by shards.")
