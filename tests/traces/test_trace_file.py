"""A trace's file is read event by event, whatever its form, and a bad one gets a line."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.written import trained_on_cpu
from vitprof.traces import trace_file
from vitprof.traces.trace_file import Progress, TraceError, TraceFile

TEXT = trained_on_cpu(3, wait_ms=2.0, work_ms=3.0).text()


def events_of(path: Path) -> list[dict[str, Any]]:
    return list(TraceFile(path).events())


@pytest.mark.parametrize("name", ["a.pt.trace.json", "a.pt.trace.json.gz"])
def test_events_and_what_is_around_them(tmp_path: Path, name: str) -> None:
    trace = trained_on_cpu(3, wait_ms=2.0, work_ms=3.0)
    file = TraceFile(trace.write(tmp_path / name))
    assert list(file.events()) == trace.events
    assert file.about == {**trace.about, "traceName": "/tmp/a.pt.trace.json"}
    assert file.n_events == len(trace.events)
    assert file.n_bytes == (tmp_path / name).stat().st_size


def test_gzip_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(TEXT.encode()))
    assert events_of(path) == json.loads(TEXT)["traceEvents"]


def test_a_bare_list_is_the_form_of_older_profilers(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(json.loads(TEXT)["traceEvents"]))
    assert events_of(path) == json.loads(TEXT)["traceEvents"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(
    before=st.dictionaries(st.text().filter(lambda key: key != "traceEvents"), VALUES, max_size=3),
    listed=st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=4),
    indent=st.sampled_from([None, 2]),
    chunk=st.integers(1, 40),
    escaped=st.booleans(),
)
def test_wherever_a_chunk_ends_the_values_are_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, Any],
    listed: list[dict[str, Any]],
    indent: int | None,
    chunk: int,
    escaped: bool,
) -> None:
    """In the middle of numbers, texts, escapes and of characters of several bytes."""
    path = tmp_path_factory.getbasetemp() / "chunks.json"
    whole = {**before, "traceEvents": listed, "after": 12345}
    text = json.dumps(whole, indent=indent, ensure_ascii=escaped)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_file, "CHUNK_BYTES", chunk)
        file = TraceFile(path)
        found = list(file.events())
    expected = json.loads(path.read_bytes().decode("utf-8", "replace"))
    assert found == expected.pop("traceEvents")
    assert file.about == expected


def test_numbers_that_json_has_not_are_read(tmp_path: Path) -> None:
    """Kineto has written them, as of an occupancy of no blocks."""
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"a": NaN, "b": -Infinity, "c": "two\nlines"}]}')
    ((event),) = events_of(path)
    assert (event["a"] != event["a"], event["b"], event["c"]) == (True, float("-inf"), "two\nlines")


def test_of_the_file_a_few_chunks_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = json.dumps(
        {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "args": {"a": [1] * 50}}
    )
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write('{"traceEvents": [' + ",\n".join([event] * 20_000) + "]}")
    monkeypatch.setattr(trace_file, "CHUNK_BYTES", 1 << 16)
    tracemalloc.start()
    try:
        assert sum(1 for _ in TraceFile(path).events()) == 20_000
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    whole_bytes = 20_000 * (len(event) + 2)
    assert most_bytes < 1 << 20 < whole_bytes / 4


def test_it_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "CHUNK_BYTES", 1000)
    path = tmp_path / "trace.json"
    path.write_text(TEXT)
    told = list[Progress]()
    n_events = sum(1 for _ in TraceFile(path, told.append).events())
    done = [now.done_bytes for now in told]
    assert len(told) > 3
    assert done == sorted(done)
    assert {now.total_bytes for now in told} == {path.stat().st_size}
    assert done[-1] == path.stat().st_size
    assert 0 < told[-1].n_events <= n_events


NOT_ONE = "is no trace of torch.profiler: "
CUT = "ends in the middle: the program that wrote it was ended, or the copy is not complete"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", NOT_ONE + "it is empty"),
        (b"import torch\n", NOT_ONE + "it is not JSON"),
        (b"\x80\x02}q\x00.", NOT_ONE + "it is not JSON"),
        (b'"a text"', NOT_ONE + "it is not JSON"),
        (b'{"a": 1}', NOT_ONE + "it has no traceEvents"),
        (b'{"traceEvents": {"a": 1}}', NOT_ONE + "it has no traceEvents"),
        (b'{"a" 1}', NOT_ONE + "it is not JSON"),
        (
            b'{"traceEvents": [{"a": tru, "b": 2}, {"c": 3}]}',
            NOT_ONE + "it is not JSON after 23 char",
        ),
        (b"PK\x03\x04..", NOT_ONE + "it is packed by zip; unpack it first"),
        (b"\x28\xb5\x2f\xfd....", NOT_ONE + "it is packed by zstd; unpack it first"),
        (b"\x1f\x8b\x08\x00\x00\x00", CUT),
        (gzip.compress(TEXT.encode())[:-40], CUT),
        (b'{"traceEvents": [' + b'{"a": ' * 100_000, NOT_ONE + "its values are nested too deeply"),
        *((TEXT[:cut].encode(), CUT) for cut in (1, 9, 80, len(TEXT) // 2, len(TEXT) - 1)),
        (TEXT[: TEXT.index("ProfilerStep#1") + 3].encode(), CUT),
    ],
)
def test_a_file_that_is_none_or_not_whole_gets_one_line(
    tmp_path: Path, data: bytes, said: str
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(TraceError) as raised:
        events_of(path)
    assert str(raised.value).startswith(f"{path} {said}")
    assert "\n" not in str(raised.value)


def test_a_folder_is_told_which_file_to_give(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory; give a file"):
        events_of(tmp_path)
    for name in ("a.1.pt.trace.json", "a.2.pt.trace.json.gz"):
        (tmp_path / name).write_text(TEXT)
    with pytest.raises(TraceError, match="give one of the 2 files in it, such as a"):
        events_of(tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"missing\.json cannot be read: No such file or directory"
    ):
        events_of(tmp_path / "missing.json")
