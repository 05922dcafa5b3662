"""Reads what first_contact.sh wrote, and writes docs/results-gpu.md: measured, expected and verdict for each row.

    python -m benchmarks.first_contact_report DIR [--output docs/results-gpu.md]

What is missing is named. Of the null device, and of a folder without a GPU's name, nothing is written unless --output
says where.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.watch_matrix import OTHER, SAME

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results-gpu.md"
NULL = "NVIDIA Null GPU"
MISSING = "missing"
WATCHED = (
    "Starved: 20 ms for a batch, 2 ms of work; busy: 12 ms of work. Measured: exposed wait, compute, and the share of",
    "the time in which the GPU was busy by torch.profiler in the same run. Expected: compute not less than busy, the",
    "exposed wait no more than the rest and no less than the script itself waited, all within 2 points; a starved loop",
    "is called input-bound; losses are those of a run without vitprof.",
)
PRECISIONS = ("fp32", "bf16", "fp16", "compiled")
LISTED_US = 20.0
"""Calls of NVML's that take no longer have no row."""
CONFINED_US = 50.0
"""As the self-test's case of the clocks."""


class Row(NamedTuple):
    """A row of a table."""

    name: str
    measured: str
    expected: str
    verdict: str
    """ok, OFF, a dash where nothing is expected, or missing."""


def judged(name: str, measured: str, expected: str, ok: bool | None) -> Row:
    return Row(name, measured, expected, {True: "ok", False: "OFF", None: "-"}[ok])


def missing(name: str, why: object) -> Row:
    return Row(name, f"not measured: {why}", "", MISSING)


def read(folder: Path, name: str) -> Any:
    """Returns the object in a file; {} where there is none that can be read."""
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def probe_rows(probe: dict[str, Any]) -> Iterator[Row]:
    for part in ("costs", "launches", "pairs", "gated"):
        if part not in probe or set(probe[part]) == {"failed"}:
            yield missing(
                f"probe: {part}", probe.get(part, {}).get("failed", "no file, or out of time")
            )
    for name, cost in probe.get("costs", {}).items():
        if isinstance(cost, dict) and "median_us" in cost:
            ok = (
                cost["median_us"] < 20
                if name in ("record", "query", "elapsed_time", "mark")
                else None
            )
            text = f"{cost['median_us']:.3g} us (99th percentile {cost['p99_us']:.3g})"
            if ok is not None or cost["median_us"] > LISTED_US:
                yield judged(name, text, "" if ok is None else "under 20 us", ok)
        elif isinstance(cost, dict):
            yield missing(f"cost: {name}", cost.get("failed"))
    if "launch_us" in (found := probe.get("launches", {})):
        blocked = found["until_the_host_blocks"]
        text = f"{blocked or 'more than tried'}; a launch takes {found['launch_us']:.3g} us"
        yield judged(
            "launches until the host blocks", text, "about 1,000", blocked is None or blocked > 500
        )
    if "drift_us_per_s" in (found := probe.get("pairs", {})):
        drift = found["drift_us_per_s"]
        yield judged(
            "drift of the clocks", f"{drift:+.3g} us a second", "within 100", abs(drift) < 100
        )
        yield judged("pairs beside a straight line", f"{found['residual_us']:.3g} us", "", None)
        late, early = found["mapped_late_us"], found["mapped_early_us"]
        text = f"99 of 100 at most {max(late, 0):.3g} us late, {max(early, 0):.3g} us early"
        yield judged(
            "marks mapped to the host's clock", text, "within 50 us", max(late, early) < CONFINED_US
        )
        half = found["gpu_util_half_load_pct"]
        text = "not available" if math.isnan(half) else f"{half:.0f}%"
        yield judged(
            "GPU-util, busy for half of the time", text, "not asked: any kernel counts", None
        )
        stamps = [stamp for stamp, _ in found["gpu_util"]]
        text = f"{len(stamps)} samples" + (
            f", one each {(stamps[-1] - stamps[0]) / (len(stamps) - 1) / 1e3:.0f} ms"
            if len(stamps) > 1
            else ""
        )
        yield judged(
            "GPU-util with stamps", found["gpu_util_failed"] or text, "each 167 to 1,000 ms", None
        )
        yield judged(
            "GPM (SM activity)", "read" if found["gpm"] else "not available", "from Hopper on", None
        )
    for name in PRECISIONS if "gated" in probe else ():
        found = probe["gated"].get(name, {"failed": "out of time"})
        if found.get("failed"):
            yield missing(f"gated steps: {name}", found["failed"])
        elif found["kernel_ms"] is None:
            row, why = f"gated steps: {name}", "no gated step was kept"
            scaled = judged(row, f"{why}: GradScaler makes the host wait", "none", None)
            yield scaled if name == "fp16" else missing(row, why)
        else:
            text = f"kernels {found['kernel_ms']:.3g} of compute {found['compute_ms']:.3g} ms, {found['n_gated']} gates"
            ok = found["kernel_ms"] <= found["compute_ms"] * 1.05
            yield judged(f"gated steps: {name}", text, "no longer than compute", ok)


def doctor_rows(doctor: dict[str, Any]) -> Iterator[Row]:
    if not doctor.get("checks"):
        yield missing("doctor", "no file, or out of time")
    else:
        bad = [
            f"{check['name']}: {check['found']}"
            for check in doctor["checks"]
            if check["verdict"] == "bad"
        ]
        yield judged("doctor", "; ".join(bad) or "nothing is bad", "nothing is bad", not bad)


def watch_rows(watch: dict[str, Any]) -> Iterator[Row]:
    if not watch.get("rows"):
        yield missing("watched scripts", "no file, or out of time")
    for row in watch.get("rows", []):
        name = ", ".join(filter(None, (row["script"], row.get("case"))))
        if reason := row.get("skipped") or row.get("failed"):
            yield missing(name, reason)
            continue
        busy, losses = row["busy_frac"], row.get("losses", "")
        shares = f"{row['exposed_wait_frac']:.1%} / {row['compute_frac']:.1%} / "
        wrong = list(row["wrong"]) + [OTHER] * (losses == OTHER)
        expected = "; ".join([*wrong, *[losses] * (losses not in ("", OTHER, SAME))])
        yield judged(
            name,
            shares + (row["oracle"] if math.isnan(busy) else f"{busy:.1%}"),
            expected,
            not wrong,
        )
        if math.isnan(busy):
            yield missing(f"{name}: oracle", row["oracle"])
    if watch.get("cut"):
        yield missing("further scripts", watch["cut"])


def selftest_rows(selftest: dict[str, Any]) -> Iterator[Row]:
    if not selftest.get("results"):
        yield missing("selftest --gpu", "no file, or out of time")
    for case in selftest.get("results", []):
        verdict = {"passed": "ok", "failed": "OFF"}.get(case["status"], MISSING)
        text = ": ".join(filter(None, (case["measured"], case["wrong"])))
        yield Row(case["case"], text, "" if verdict == "ok" else case["expected"], verdict)
    if selftest.get("stopped"):
        yield missing("self-test: further cases", selftest["sentence"])


def strategy_rows(file: dict[str, Any]) -> Iterator[Row]:
    found = dict(file.get("strategies", {}))
    left, failure = found.pop("left over", None), found.pop("failed", None)
    if not found:
        yield missing("strategies", failure or "no file, or out of time")
    done = []
    for name, run in found.items():
        if "skipped" in run:
            yield missing(f"strategy {name}", run["skipped"])
        elif run.get("status") != "done" or run.get("failed"):
            text = f"{run.get('status', 'failed')}, {run.get('n_steps', 0)} steps {run.get('failed', '')}".strip()
            yield judged(f"strategy {name}", text, "done", False)
        else:
            done.append(name)
    if done:
        yield judged("done", ", ".join(done), "all but those above", True)
    if left is None:
        yield missing("left over by the strategies", "the part ended early")
    else:
        text = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in left.items()) or "nothing"
        yield judged("left over by the strategies", text, "nothing", not left)


def device_name(folder: Path) -> str:
    """Returns the GPU's name; "" where no part could say it."""
    files = (read(folder, name) for name in ("probe.json", "watch.json"))
    return next((file["device_name"] for file in files if file.get("device_name")), "")


def page(folder: Path) -> str:
    """Returns the page of a folder."""
    probe = read(folder, "probe.json")
    sections = {
        "Clocks, marks and launching kernels": [
            *doctor_rows(read(folder, "doctor.json")),
            *probe_rows(probe),
        ],
        "Watched scripts": list(watch_rows(read(folder, "watch.json"))),
        "Self-test": list(selftest_rows(read(folder, "selftest.json"))),
        "Every strategy": list(strategy_rows(read(folder, "strategies.json"))),
    }
    rows = [row for section in sections.values() for row in section]
    count = {
        verdict: sum(row.verdict == verdict for row in rows) for verdict in ("ok", "OFF", MISSING)
    }
    driver = ""
    if (smi := folder / "nvidia-smi.txt").exists():
        lines = re.findall(
            r"^(Driver Version|CUDA Version)\s*:\s*(.+)$",
            smi.read_text(errors="replace"),
            re.MULTILINE,
        )
        driver = "".join(f", {name.lower()} {value.strip()}" for name, value in lines)
    shown = {title: [row for row in rows if row.verdict != "-"] for title, rows in sections.items()}
    text = [
        "# Results on a GPU",
        "",
        "This page shows what vitprof measured on a real GPU, next to what was expected or what torch.profiler saw."
        " Repeat it on yours: `bash benchmarks/first_contact.sh OUT`.",
        "",
        f"{device_name(folder) or 'Unknown GPU'}{driver}. Made by `benchmarks/first_contact.sh`: {count['ok']} rows as"
        f" expected, {count['OFF']} off, {count[MISSING]} not measured. Rows without an expectation are left out.",
    ]
    for title, section in shown.items():
        text += ["", f"## {title}", ""]
        text += [*WATCHED, ""] if title == "Watched scripts" else []
        text += ["| row | measured | expected | verdict |", "|---|---|---|---|"]
        text += [
            f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in row)} |"
            for row in section
        ]
    text += ["", "## Loading and overhead", ""]
    tables = (
        (folder / "rows.txt").read_text(errors="replace") if (folder / "rows.txt").exists() else ""
    )
    kept = [line for line in tables.splitlines() if line.startswith("|")]
    head = ""
    for i, line in enumerate(kept):  # one table after another; those with the same head are one
        if i + 1 < len(kept) and kept[i + 1].startswith("|---") and line != head:
            head = line
            text += [""] * (i > 0) + [line, kept[i + 1]]
        elif line != head and not line.startswith("|---"):
            text.append(line)
    if not kept:
        text.append("Not measured: the parts failed, or were out of time.")
    return "\n".join(text) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--output", type=Path, help=f"{PAGE.name} in docs/, where a real GPU was measured"
    )
    given = parser.parse_args(arguments)
    name = device_name(given.folder)
    if given.output is None and (not name or NULL in name):
        raise SystemExit(
            f"{given.folder}: {name or 'no GPU'}: these are no results of a GPU; --output FILE writes them"
        )
    output = given.output or PAGE
    output.write_text(page(given.folder), encoding="utf-8")
    print(output)


if __name__ == "__main__":
    main()
