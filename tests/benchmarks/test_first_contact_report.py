"""The report of a first contact with a GPU, from a made-up folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_contact_report
from benchmarks.first_contact_report import NULL, main, page
from tests import ROOT

CARD = "NVIDIA H100"
US = {"median_us": 2.0, "p99_us": 9.0}
FILES: dict[str, Any] = {
    "probe.json": {
        "device_name": CARD,
        "costs": {"record": US, "nvmlDeviceGetPowerUsage": {"failed": "Not Supported"}},
        "launches": {"until_the_host_blocks": 1022, "launch_us": 3.1, "tried": 4096},
        "pairs": {
            "drift_us_per_s": -12.0,
            "residual_us": 3.0,
            "mapped_late_us": 4.0,
            "mapped_early_us": 80.0,
            "gpu_util": [[1_000_000, 50], [1_200_000, 52], [1_400_000, 51]],
            "gpu_util_failed": "",
            "gpu_util_half_load_pct": float("nan"),
            "gpm": True,
        },
        "gated": {"fp32": {"kernel_ms": 1.0, "compute_ms": 2.0, "n_gated": 5}, "compiled": {"failed": "no Triton"}},
    },
    "selftest.json": {
        "stopped": True,
        "sentence": "stopped after 2 of 6 cases",
        "results": [
            {"case": "copies", "status": "passed", "measured": "80%", "wrong": "", "expected": "80%"},
            {"case": "own cost", "status": "not run", "measured": "", "wrong": "no memory", "expected": "2%"},
        ],
    },
    "strategies.json": {
        "strategies": {
            "memory": {"status": "done", "n_steps": 12},
            "dali": {"skipped": "DALI is not installed"},
            "left over": {"shared memory": ["torch_1"]},
        }
    },
}


def written(folder: Path, name: str = CARD) -> Path:
    for file, values in FILES.items():
        (folder / file).write_text(json.dumps(values).replace(CARD, name))
    (folder / "rows.txt").write_text("a ...\n| job | x |\n|---|---|\n| b | 1 |\n| job | y |\n|---|---|\n")
    return folder


def test_each_row_has_a_verdict_and_what_is_missing_is_named(tmp_path: Path) -> None:
    lines = page(written(tmp_path)).splitlines()
    verdict = {cells[1].strip(): cells[-2].strip() for cells in (line.split("|") for line in lines) if len(cells) == 6}
    expected = {
        "cost: record": "ok",
        "cost: nvmlDeviceGetPowerUsage": "missing",
        "launches until the host blocks": "ok",
        "drift of the clocks": "ok",
        "marks mapped to the host's clock": "OFF",
        "GPU-util with stamps": "-",
        "gated steps: fp32": "ok",
        "gated steps: bf16": "missing",
        "gated steps: compiled": "missing",
        "doctor": "missing",
        "self-test: copies": "ok",
        "self-test: own cost": "missing",
        "self-test: further cases": "missing",
        "strategy memory": "ok",
        "strategy dali": "missing",
        "left over by the strategies": "OFF",
    }
    assert expected.items() <= verdict.items()
    assert "one each 200 ms" in page(tmp_path)
    (tmp_path / "selftest.json").write_text("Killed")
    assert "| selftest --gpu | not measured" in page(tmp_path)
    assert "| b | 1 |\n\n| job | y |" in page(tmp_path)


def test_a_null_device_and_an_empty_folder_are_no_results_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact_report, "PAGE", tmp_path / "page.md")
    with pytest.raises(SystemExit, match="no GPU"):
        main([str(tmp_path)])
    with pytest.raises(SystemExit, match=NULL):
        main([str(written(tmp_path, NULL))])
    assert not (tmp_path / "page.md").exists()
    main([str(written(tmp_path))])
    assert CARD in (tmp_path / "page.md").read_text()


def test_the_shell_reads_the_script() -> None:
    subprocess.run(["bash", "-n", str(ROOT / "benchmarks" / "first_contact.sh")], check=True)
