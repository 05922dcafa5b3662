"""Series that somebody sent are read by a process of its own: what ends it is a line."""

import io
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from pyarrow import parquet as pq

from tests.recording.archives import changed, packed, parquet, unpacked
from tests.recording.test_archive import RUN
from vitprof.recording import archive, series_file
from vitprof.recording.archive import ArchiveError, pack, unpack
from vitprof.recording.series_file import SeriesReader, Unreadable

MOST = 2**20


def test_columns_come_back_as_they_were() -> None:
    written = {"a": np.array([1.5, np.nan, -0.0]), "größe\n": np.arange(3.0)}
    with SeriesReader() as reader:
        for series in (written, {}, {"a": np.empty(0)}, written):
            found = reader.columns(parquet(series), 1, MOST)
            assert list(found) == list(series)
            for name, values in series.items():
                np.testing.assert_array_equal(found[name], values)


def test_a_file_that_is_refused_does_not_keep_the_next_one_from_being_read() -> None:
    good = parquet({"a": np.arange(9.0)})
    with SeriesReader() as reader:
        for bad, why in (
            (good[:-9], "is damaged: "),
            (b"", "is damaged: "),
            (parquet({"a": np.arange(9.0)}, compression="zstd"), "is packed a second time"),
            (parquet({"a": ["x"]}), "has columns that are no numbers"),
            (parquet({"a": np.zeros(200_000)}), "has more rows than the 1.00 MiB that are allowed"),
        ):
            with pytest.raises(Unreadable, match=why):
                reader.columns(bad, 1, MOST)
            assert len(reader.columns(good, 1, MOST)["a"]) == 9


def test_arrow_reads_nothing_of_a_bundle_in_the_process_that_imports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = pack([RUN])
    monkeypatch.setattr(pq, "ParquetFile", lambda *_, **__: pytest.fail("Arrow read it here"))
    (found,) = unpack(io.BytesIO(sent))
    assert found.steps is not None
    assert len(found.steps["step"]) == 12


def starts(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Makes the other process run this code."""

    def start(_module: str, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code], stdin=stdin, stdout=stdout)

    monkeypatch.setattr(series_file.confined, "start", start)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os.abort()", "reading it ended a process by SIGABRT: it is damaged"),
        (
            "import sys; sys.stdin.buffer.read(500); import os; os.kill(os.getpid(), 11)",
            "reading it ended a process by SIGSEGV: it is damaged",
        ),
        ("import os; os.kill(os.getpid(), 9)", "it may need more memory than there is"),
        ("import os; os.kill(os.getpid(), 27)", "it takes more than 60 s of work"),
        ("print('{')", "ended a process with status 0"),
        ("import sys; sys.exit(3)", "ended a process with status 3"),
        (
            'import sys; sys.stdin.buffer.read(500); print(\'{"names": ["a"], "rows": 99}\')',
            "ended a process with status 0",
        ),
    ],
)
def test_a_process_that_ends_is_one_line(
    code: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert signal.SIGPROF == 27
    starts(monkeypatch, code)
    with pytest.raises(ArchiveError) as caught:
        unpack(io.BytesIO(pack([RUN])))
    said = str(caught.value)
    assert said.startswith("steps-1.parquet could not be read: ")
    assert why in said
    assert "\n" not in said


def test_a_process_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    starts(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(series_file, "MOST_WAIT_S", 0.01)
    began_s = time.monotonic()
    with pytest.raises(ArchiveError, match=r"could not be read: it took more than 0 s"):
        unpack(io.BytesIO(pack([RUN])))
    assert time.monotonic() - began_s < 300


def test_a_process_that_cannot_be_started_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise BlockingIOError(11, os.strerror(11))

    monkeypatch.setattr(series_file.confined, "start", start)
    with pytest.raises(ArchiveError, match=r"no process could be started for it \(BlockingIOError"):
        unpack(io.BytesIO(pack([RUN])))


def test_no_process_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = series_file.confined.start

    def kept(module: str, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
        started.append(start(module, stdin, stdout))
        return started[-1]

    monkeypatch.setattr(series_file.confined, "start", kept)
    unpack(io.BytesIO(pack([RUN])))
    cut = unpacked(pack([RUN]))
    cut["steps-1.parquet"] = cut["steps-1.parquet"][:-9]
    with pytest.raises(ArchiveError):
        unpack(io.BytesIO(packed(cut)))
    assert [child.returncode is not None for child in started] == [True, True]


def test_what_could_not_be_read_again_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unpack(io.BytesIO(pack([RUN])))
    monkeypatch.setattr(archive, "MAX_SERIES_BYTES", 100)
    with pytest.raises(ArchiveError, match="in memory, of at most 100 B; export fewer at a time"):
        pack([RUN])


def test_many_runs_that_are_small_in_the_file_and_large_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column of one value takes no room in the file; each run is small enough by itself."""
    members = unpacked(pack([RUN]))
    members["telemetry-1.parquet"] = parquet({"t_s": np.ones(20_000)}, use_dictionary=True)
    described = changed(pack([RUN]), lambda values: values.update(run_id=42))
    for name, data in list(members.items()):
        members[name.replace("-1.", "-2.")] = data
    members["recording-2.json"] = unpacked(described)["recording-1.json"]
    sent = packed(members, runs=2)
    assert len(unpack(io.BytesIO(sent))) == 2
    monkeypatch.setattr(archive, "MAX_SERIES_BYTES", 5_000_000)
    with pytest.raises(ArchiveError, match=r"its series take more than the 4\.77 MiB"):
        unpack(io.BytesIO(sent))
