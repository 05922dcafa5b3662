"""The loader benchmark: its arithmetic, its references, and one tiny round of every row. No ratio is judged here."""

import csv
import ctypes
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import loader_gpu, loaders, references
from benchmarks.loader_cases import CASES
from benchmarks.measuring import SLICES, Case, Row, Settings, Side, Work, measure
from tests.engine_fixtures import small_home  # noqa: F401

COMPILER = shutil.which(os.environ.get("CC", "cc"))
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler for the reference")
TINY = [
    "--rounds",
    "1",
    "--seconds",
    "0.004",
    "--batch-size",
    "100",
    "--photos",
    "8",
    "--staged-mb",
    "1",
]
CASE_NAMES = [case.name for case in CASES]


@pytest.mark.parametrize(
    ("clock", "ratio"), [("cpu", 10 / 2 / (10 / 1)), ("wall", 10 / 4 / (10 / 5))]
)
def test_a_ratio_is_of_rates_by_the_cases_clock(clock: Any, ratio: float) -> None:
    sides: dict[str, Side] = {
        "a": lambda seconds: Work(10, 4, 2),
        "b": lambda seconds: Work(10, 5, 1),
    }

    def ratio_of(rates: dict[str, float]) -> float:
        return rates["a"] / rates["b"]

    case = Case(
        "a", "A", ratio=ratio_of, open=lambda things, settings: sides, at_least=0.5, clock=clock
    )
    row = measure(case, Settings(rounds=3))
    assert row.ratios == pytest.approx([ratio] * 3)
    assert row.rounds[0]["a"] == Work(10 * SLICES, 4 * SLICES, 2 * SLICES)


@pytest.mark.parametrize(
    ("at_least", "at_most", "ratios", "met", "asked"),
    [
        (0.9, None, [0.2, 0.9, 1.0], True, ">= 0.9"),
        (0.9, None, [0.89], False, ">= 0.9"),
        (0.9, 1.1, [1.2], False, "0.9 to 1.1"),
        (None, None, [1.0], None, ""),
        (0.9, None, [], None, ">= 0.9"),
    ],
)
def test_a_gate_is_met_by_the_median(
    at_least: float | None, at_most: float | None, ratios: list[float], met: bool | None, asked: str
) -> None:
    row = Row("a", "A", at_least, at_most, ratios=ratios)
    assert row.met is met
    assert row.asked == asked


@needs_compiler
def test_the_reference_gathers_and_reads(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (50, 12), dtype=np.uint8)
    order = np.array([49, 0, 7, 7], dtype=np.int64)
    paths = [tmp_path / str(i) for i in range(len(rows))]
    for path, row in zip(paths, rows, strict=True):
        path.write_bytes(row.tobytes())
    names = (ctypes.c_char_p * len(paths))(*(str(path).encode() for path in paths))
    for function, source in (
        ("gather_rows", rows.ctypes.data),
        ("read_files", ctypes.addressof(names)),
    ):
        out = np.zeros((4, 12), np.uint8)
        call = getattr(references.compiled(), function)
        call(*map(ctypes.c_void_p, [source, 12, order.ctypes.data, 4, out.ctypes.data]))
        assert np.array_equal(out, rows[order]), function


@pytest.mark.measured
@needs_compiler
@pytest.mark.usefixtures("small_home")
def test_every_row_is_measured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table.csv"
    loaders.main([*TINY, "--csv", str(file), "--only", *CASE_NAMES])
    shown = capsys.readouterr().out
    table = list(csv.DictReader(file.open(encoding="utf-8")))
    assert [row["name"] for row in table] == CASE_NAMES
    for row, case in zip(table, CASES, strict=True):
        assert f"| {case.title} | {case.asked} |" in shown
        assert row["gate"] in ({"met", "MISSED", "disturbed"} if case.asked else {""}), row
        assert 0 < float(row["low"]) <= float(row["measured"]) <= float(row["high"])
        assert row["n"] == "1"
    rounds = list(csv.DictReader((tmp_path / "table-rounds.csv").open(encoding="utf-8")))
    for row in rounds:
        assert min(float(row[column]) for column in ("units", "wall_s", "cpu_s", "ratio")) > 0, row
    assert {row["name"] for row in rounds} == set(CASE_NAMES)
    assert "R: " in shown
    assert "J: " in shown


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize("name", loader_gpu.ROWS)
def test_with_a_gpu_its_rows_are_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"n_images": 64, "batch_size": 16}
    monkeypatch.setattr(loader_gpu, "LARGE", loader_gpu.LARGE | small)
    monkeypatch.setattr(loader_gpu, "DIGITS", loader_gpu.DIGITS | {"batch_size": 50})
    (row,) = loader_gpu.rows([name], Settings(rounds=1))
    assert len(row.ratios) == 1, row.note
    assert row.ratios[0] >= 0
