"""A file of recordings from somebody who means harm is refused as a whole, in one line; what is new in one is kept."""

import dataclasses
import io
import os
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.alarm import cpu_alarm
from tests.recording.archives import (
    arrow_here,  # noqa: F401
    changed,
    packed,
    parquet,
    unpacked,
    with_columns,
)
from vitprof.config import RunConfig
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.recording import archive, codec
from vitprof.recording.archive import ArchiveError, pack, unpack
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS, Phase, RunSummary
from vitprof.recording.recording import Recording
from vitprof.recording.verdict import Share, Verdict

pytestmark = pytest.mark.usefixtures("arrow_here")

N = 12
NOT_ONE = "it is not a file of runs that vitprof wrote (*.vitprof), or it is damaged"
STEPS = {name: np.full(N, np.nan) for name in STEP_COLUMNS} | {
    **{name: np.zeros(N) for name in ("rank", "epoch", "warmup")},
    **{
        "step": np.arange(N) * 1.0,
        "samples": np.full(N, 128.0),
        "t_start_s": 100 + np.arange(N) * 0.01,
    },
    **{"compute_s": np.full(N, 0.006), "gap_s": np.full(N, 0.004), "worker": np.ones(N)},
}
TELEMETRY = {name: np.full(2, np.nan) for name in TELEMETRY_COLUMNS} | {
    "seq": np.arange(2.0),
    "t_s": np.arange(1.0, 3),
}
RUN = Recording(
    run_id=41,
    name="Größe 🚀",
    status="done",
    created_utc="2026-01-01T00:00:00Z",
    t_origin_s=99.5,
    config=RunConfig(strategy="workers", workers=2, device="simulated:5,0"),
    environment={"cpu_count": 2, "torch": "2.15", "from_a_later_version": {"deep": [1, None]}},
    facts={"imported": {"host": "there", "run_id": 7}, "n_train": 60_000, "odd_s": 1.5},
    verdict=Verdict(
        kind="input-bound",
        sentence="So it is.",
        simulated=True,
        shares=(Share("read", 1.0, 4.0, np.nan),),
    ),
    summary=RunSummary(n_steps=N, samples_per_s=1234.5678901234567),
    phases=(Phase("prepare", 90.0, 99.5),),
    notices=("no GPU",),
    steps=STEPS,
    telemetry=TELEMETRY,
)


@pytest.fixture(scope="module")
def sent() -> bytes:
    """A file of one recording of 12 steps."""
    return pack([RUN])


def refused(data: bytes, telling: str = "") -> None:
    with cpu_alarm(5.0), pytest.raises(ArchiveError) as caught:
        unpack(io.BytesIO(data))
    line = str(caught.value)
    assert telling in line
    assert "\n" not in line


def test_a_recording_comes_out_as_it_went_in(sent: bytes) -> None:
    (found,) = unpack(io.BytesIO(sent))
    described = [
        codec.to_plain(dataclasses.replace(run, steps=None, telemetry=None)) for run in (found, RUN)
    ]
    assert described[0] == described[1]
    for series, before in ((found.steps, STEPS), (found.telemetry, TELEMETRY)):
        assert set(series) == set(before)
        for name, values in before.items():
            np.testing.assert_array_equal(series[name], values, err_msg=name)


def test_what_other_versions_know_or_lack(sent: bytes) -> None:
    later = with_columns(sent, lambda s: s.update(kernels=np.arange(N) * 2.0))
    later = changed(later, lambda v: v["facts"].update(joules=3.5) or v.update(mood="good"))
    (found,) = unpack(io.BytesIO(later))
    assert list(found.steps)[-1] == "kernels"
    assert found.steps["kernels"].tolist() == [2.0 * n for n in range(N)]
    assert (found.facts["joules"], found.environment["from_a_later_version"]) == (
        3.5,
        {"deep": [1, None]},
    )
    (again,) = unpack(io.BytesIO(pack([found])))
    assert again.steps["kernels"][-1] == 22.0
    (found,) = unpack(io.BytesIO(with_columns(sent, lambda s: s.pop("worker"))))
    assert np.isnan(found.steps["worker"]).all()


def test_what_is_no_such_file_and_a_cut_or_changed_one(sent: bytes) -> None:
    for data in (
        b"",
        b"hello",
        b"PK\x05\x06" + bytes(18),
        b"PK\x03\x04" + bytes(100),
        os.urandom(4096),
        b"\x80\x04N.",
    ):
        refused(data, NOT_ONE)
    for n in (1, len(sent) // 2, len(sent) - 1):
        refused(sent[:n], NOT_ONE)
    refused(sent + b"x", NOT_ONE)
    refused(b"#!/bin/sh\n" + sent, NOT_ONE)
    with zipfile.ZipFile(io.BytesIO(sent)) as opened:
        info = opened.getinfo("steps-1.parquet")
    at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    refused(sent[:at] + bytes([sent[at] ^ 1]) + sent[at + 1 :])


def test_members_that_do_not_belong_there_are_missing_or_twice(sent: bytes) -> None:
    members = unpacked(sent)
    for name in ("../../evil", "/etc/passwd", "recording-1.json/../x", "recording-0.json", "a\\b"):
        refused(packed(members | {name: b"x"}), "files that do not belong to a run")
    for name in members.keys() - {archive.MANIFEST}:
        refused(packed({n: d for n, d in members.items() if n != name}), "missing")
    refused(packed(members, runs=2), "missing")
    file = io.BytesIO(sent)
    with zipfile.ZipFile(file, "a") as opened, pytest.warns(UserWarning, match="Duplicate"):
        opened.writestr("recording-1.json", members["recording-1.json"])
    refused(file.getvalue(), NOT_ONE)


def test_a_manifest_that_is_wrong(sent: bytes) -> None:
    wrong: dict[str, tuple[Any, ...]] = {"format": ("zip", 5), "version": (1, 3, None)}
    for name, values in (wrong | {"runs": (None, 0, -1, True, 1.0, "1", 1001, 10**9)}).items():
        for value in values:
            refused(packed(unpacked(sent), **{name: value}))


def test_a_bomb_is_not_unpacked(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    members = unpacked(sent)
    refused(
        packed(members | {"recording-1.json": bytes(2**22)}),
        "more than the 2.00 MiB that are allowed",
    )
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 2**20)
    refused(
        packed(members | {"steps-1.parquet": bytes(2**22)}),
        "more than the 1.00 MiB that are allowed",
    )
    many = members | {
        f"{kind}-{n}.parquet": bytes(2**19) for n in range(1, 9) for kind in ("steps", "telemetry")
    }
    refused(
        packed(many), "would unpack to more than the 1.00 MiB"
    )  # each is small enough by itself
    # one that declares less than it holds is read up to what it declares, and its checksum is wrong there
    bomb = bytearray(packed(members | {"steps-1.parquet": bytes(2**22)}))
    real, lie = (2**22).to_bytes(4, "little"), (96).to_bytes(4, "little")
    assert bomb.count(real) == 2
    refused(bytes(bomb.replace(real, lie)), "damaged")


@pytest.mark.parametrize("n_files", [4_000, 8_000])
def test_a_huge_table_of_contents_is_not_read(
    monkeypatch: pytest.MonkeyPatch, n_files: int
) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for n in range(n_files):
            opened.writestr(f"run-{n}.json", b"")
    entries: list[zipfile.ZipInfo] = []
    monkeypatch.setattr(
        archive.zipfile.ZipInfo, "_decodeExtra", lambda self, *_: entries.append(self)
    )
    refused(file.getvalue(), "more than the 1,000 runs")
    assert len(entries) <= 4_000  # the longer one is refused before it is in memory


def test_other_ways_of_packing(sent: bytes) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as opened:
        for name, data in unpacked(sent).items():
            opened.writestr(name, data)
    refused(file.getvalue(), "packed in a way that vitprof does not write")


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"[]",
            b"null",
            b"\xff",
            b"{",
            b'{"a": NaN}',
            b'{"a": 1e999}',
            b'{"a": ' + b"9" * 5000 + b"}",
        ),
        *(b'{"a": ' + b"[" * n + b"]" * n + b"}" for n in (20, 100_000)),
    ],
    ids=lambda text: text[:20].decode("latin-1"),
)
def test_json_that_is_none_or_no_recording(sent: bytes, text: bytes) -> None:
    refused(packed(unpacked(sent) | {"recording-1.json": text}), "recording-1.json")


def test_texts_that_cannot_be_shown_are_made_harmless(sent: bytes) -> None:
    (found,) = unpack(
        io.BytesIO(
            changed(sent, lambda v: v.update(error="\0\u202e" + "x" * 20_000, note="\ud800"))
        )
    )
    assert ((found.error or "")[:3], len(found.error or ""), found.note) == (
        "\ufffd\ufffdx",
        10_000,
        "\ufffd",
    )


OWN = {"strategy": "own-script", "model": "own-script", "loader": "dataloader"}
THERE = {"imported": {"host": "there", "run_id": 1}}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("run_id", (None, 0, -1, 2**31, 1.5, "one")),
        ("name", (None, "", 3, "x" * 201, ["a"])),
        ("status", (None, "running", "queued", "", "dead", ["done"])),
        ("created_utc", (None, "", "yesterday", 5)),
        ("created_utc", ("2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "2026-1-01T00:00:00Z")),
        ("t_origin_s", ("soon", 1e10, [])),
        (
            "config",
            (None, [], {"strategy": "magic"}, {"batch_size": -1}, {"no_such": 1}, {"device": []}),
        ),
        (
            "config",
            tuple({name: 10**12} for name in RUN_BOUNDS),
        ),  # a count without end would hang whoever imports it
        (
            "config",
            (
                {"strategy": []},
                {"seed": 1.5},
                {"steps": 1, "epochs": 1},
                {"name": "x" * 201},
                {"loader": "x"},
            ),
        ),
        (
            "config",
            (OWN | {"model": "vit-tiny"}, OWN | {"storage": "hdf5"}, OWN | {"dataset": "x" * 201}),
        ),
        ("config", (OWN | {"loader": "threads"},)),
        ("environment", (None, [], {"cpu_count": "many"}, {"device_name": 5}, {"watched": 1})),
        ("environment", ({"watched": {"batch_size": "a"}},)),
        (
            "facts",
            (
                None,
                {},
                {"imported": {}},
                {"imported": {"host": "there"}},
                {"imported": {"host": "", "run_id": 1}},
                {"imported": {"host": ["there"], "run_id": 1}},
                {"imported": {"host": "there", "run_id": 1.5}},
                {"imported": {"host": "there", "run_id": True}},
            ),
        ),
        ("facts", tuple({"imported": {"host": "there", "run_id": v}} for v in (0, 2**40, "x"))),
        (
            "facts",
            tuple(THERE | {"transforms": v} for v in ([], {"a": 1}, {"a": {"s_per_sample": 1.0}})),
        ),
        ("facts", (THERE | {"n_train": "x"}, THERE | {"cpu_count": 2}, THERE | {"stops": [1]})),
        ("facts", (THERE | {"replay": {"0": {"steps": 1}}},)),
        ("phases", (None, [1], [["a", 1.0]], [{"name": "a", "t_start_s": 2.0, "t_end_s": 1.0}])),
        (
            "phases",
            tuple([{"name": "a", "t_start_s": v, "t_end_s": 2e9}] for v in (None, 1.0, "x")),
        ),
        ("notices", (None, "text", [1], [[]])),
        ("summary", ([], {"n_steps": 1.5}, {"samples_per_s": "fast"})),
        ("verdict", ("input-bound", {"kind": "awful"}, {})),
        ("note", (None, 5)),
        ("tags", (None, "ab", [1])),
        ("role", (None, 5, "x" * 201)),
    ],
)
def test_values_that_no_run_has(sent: bytes, field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        refused(
            changed(sent, lambda v, value=value: v.update({field: value})), "recording-1.json: "
        )


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(step=s["step"][::-1]),
        lambda s: s.update(step=s["step"] * 0),
        lambda s: s.update(step=s["step"] + 0.5),
        lambda s: s.update(step=s["step"] - 5),
        lambda s: s.update(step=s["step"] * 1e12),
        lambda s: s.update(rank=s["rank"] * np.nan),
        lambda s: s.update(epoch=s["epoch"] - np.arange(N)),
        lambda s: s.update(samples=s["samples"] * -1),
        lambda s: s.update(warmup=s["warmup"] + np.nan),
        lambda s: s.update(t_start_s=s["t_start_s"][::-1]),
        lambda s: s.update(t_start_s=s["t_start_s"] * np.nan),
        lambda s: s.update(compute_s=s["compute_s"] + np.inf),
        lambda s: s.update(compute_s=s["compute_s"] - 1e300),
        lambda s: s.update(worker=[["deep"]] * N),
        lambda s: s.update(worker=["text"] * N),
        lambda s: s.pop("samples"),
        lambda s: s.pop("t_start_s"),
    ],
)
def test_steps_that_no_run_has(sent: bytes, change: Callable[[dict[str, Any]], object]) -> None:
    refused(with_columns(sent, change), "steps-1.parquet")


def test_telemetry_that_no_run_has(sent: bytes) -> None:
    for change in (
        lambda s: s.update(t_s=s["t_s"] * np.nan),
        lambda s: s.update(t_s=s["t_s"] * 1e12),
    ):
        refused(with_columns(sent, change, "telemetry"), "telemetry-1.parquet")
    refused(with_columns(sent, lambda s: s.pop("t_s"), "telemetry"), "telemetry-1.parquet")


def test_series_that_are_small_in_the_file_and_large_here(sent: bytes) -> None:
    members, rows = unpacked(sent), {"step": np.zeros(4_000_000)}  # 32 MB, of 40 columns
    large = parquet(rows, use_dictionary=True)
    assert len(large) < 20_000
    refused(packed(members | {"steps-1.parquet": large}), "more rows than the 1.00 GiB")
    refused(
        packed(members | {"steps-1.parquet": parquet(rows, compression="zstd")}),
        "packed a second time",
    )
    refused(
        packed(members | {"steps-1.parquet": b"PAR1" + bytes(50) + b"PAR1"}),
        "steps-1.parquet is damaged",
    )


def test_a_rank_for_each_step_takes_no_longer(sent: bytes) -> None:
    n = 200_000  # one pass for each would take minutes

    def many(series: dict[str, Any]) -> None:
        series.update({name: np.resize(values, n) for name, values in series.items()})
        series.update(
            step=np.arange(n) * 1.0,
            rank=np.arange(n) * 1.0,
            t_start_s=np.zeros(n),
            compute_s=np.ones(n),
        )
        series["t_start_s"][-1] = np.nan

    refused(with_columns(sent, many), "not in the order of time")
