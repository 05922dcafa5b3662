"""A job whose idle share is known: by arithmetic, as vitprof reports it, and as a counter like NVML's shows it.

    python -m benchmarks.truth [--rounds 3] [--html FILE]

The device is simulated and computes 12 ms a step; a wait of 20 ms is put into the reading of each batch. The host's
clock gives the time of a step, from launch to launch, and the device idles for all of that but 12 ms. For comparison,
it also prints the share if waits ended exactly on time: with a step of 20 ms plus the time of loading and launching
without the wait, which is measured as well. Rounds are interleaved; figures are medians with the range.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from vitprof.analysis.arrays import Floats
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.utilisation import idle_bins
from vitprof.charts.style import DATA_WAIT, GPU_UTIL, LEGEND, MARGIN, REFERENCE, axis
from vitprof.config import RunConfig
from vitprof.jobs.manager import JobManager
from vitprof.recording.columns import RunSummary
from vitprof.store import RunStore, StoredRun

COMPUTE_S, WAIT_S = 12e-3, 20e-3
SECONDS = 6.0
BIN_S = 0.2
JOB: dict[str, Any] = {
    "strategy": "memory",
    "batch_size": 128,
    "threads": 1,
    "evaluate": False,
    "seconds": SECONDS,
}


def measured(
    manager: JobManager, store: RunStore, config: RunConfig
) -> tuple[StoredRun, RunSummary]:
    """Returns the finished run of `config` and its summary. Raises `SystemExit` where it fails."""
    run_id = manager.submit(config)
    manager.wait(run_id)
    run = store.run(run_id)
    if run.status != "done" or run.summary is None:
        raise SystemExit(f"{run.name}: {run.status}: {run.error}")
    return run, run.summary


def true_idle_frac(store: RunStore, run_id: int) -> float:
    """Returns 1 - compute / step, with steps by the host's clock."""
    steps = store.steps(run_id)
    launched = (steps["t_start_s"] + steps["data_wait_s"] + steps["host_s"])[steady_state(steps)]
    return 1 - COMPUTE_S / float(np.diff(launched).mean())


def line(name: str, values: list[float]) -> str:
    return f"| {name} | {statistics.median(values):.1%} ({min(values):.1%}-{max(values):.1%}) |"


def idle_over_time(
    reported: tuple[Floats, Floats],
    *,
    true: tuple[Floats, Floats] | None = None,
    sampled: tuple[Floats, Floats] | None = None,
    sampled_name: str = "100% - GPU-util (NVML-style, trailing)",
) -> go.Figure:
    """Returns the device's idle share over time; each line is (seconds since the run began, share 0 to 1).

    `reported` is what vitprof found, each value at the end of the span that it describes. `true` is what it must be by
    arithmetic. `sampled` is what a counter like NVML's shows at its sampling times, a mean of the time before.
    """
    lines: list[tuple[str, tuple[Floats, Floats] | None, dict[str, Any]]] = [
        ("true, by arithmetic", true, {"color": REFERENCE, "width": 7}),
        (sampled_name, sampled, {"color": GPU_UTIL, "width": 1.5, "shape": "vh"}),
        ("reported by vitprof", reported, {"color": DATA_WAIT, "width": 2, "shape": "vh"}),
    ]
    figure = go.Figure(
        [
            go.Scatter(
                x=xy[0],
                y=xy[1] * 100,
                name=name,
                mode="lines",
                line=line,
                hovertemplate="%{y:.1f}%",
            )
            for name, xy, line in lines
            if xy is not None
        ]
    )
    return figure.update_layout(
        margin=MARGIN,
        legend=LEGEND,
        showlegend=True,
        hovermode="x unified",
        xaxis=axis("time since the run began (s)"),
        yaxis=axis("device idle (%)", range=[0, 105]),
    )


def chart(store: RunStore, run: StoredRun, true_frac: float) -> str:
    """Returns a chart of one run's three lines as a self-contained HTML page."""
    steps, telemetry = store.steps(run.id), store.telemetry(run.id)
    origin = float(steps["t_start_s"][0])
    edges, reported = idle_bins(steps, run.phases, bins=round(SECONDS / BIN_S))
    inside = (telemetry["t_s"] > edges[0] + BIN_S) & (telemetry["t_s"] < edges[-1])
    figure = idle_over_time(
        (edges[1:] - origin, reported),
        true=(np.array([0.0, edges[-1] - origin]), np.array([true_frac, true_frac])),
        sampled=(telemetry["t_s"][inside] - origin, 1 - telemetry["gpu_util_pct"][inside] / 100),
    )
    figure.update_layout(template="plotly_white", width=900, height=320)
    return str(figure.to_html(include_plotlyjs=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--html", type=Path, help="write the chart of the last round to this file")
    given = parser.parse_args()
    store = RunStore()
    manager = JobManager(store)
    wait = RunConfig(
        **JOB, device=f"simulated:{COMPUTE_S * 1e3:g},0", inject=f"read:{WAIT_S * 1e3:g}"
    )
    alone = RunConfig(**(JOB | {"seconds": 1.0}), device="simulated:0.001,0")
    true, asked, reported, exposed, counter = [], [], [], [], []
    try:
        for _ in range(given.rounds):
            _, rest = measured(manager, store, alone)
            run, found = measured(manager, store, wait)
            true.append(true_idle_frac(store, run.id))
            asked.append(1 - COMPUTE_S / (WAIT_S + rest.step_ms_median / 1e3))
            reported.append(found.device_idle_frac)
            exposed.append(found.exposed_wait_frac)
            counter.append(1 - found.gpu_util_pct_mean / 100)
        if given.html:
            given.html.write_text(chart(store, run, true[-1]), encoding="utf-8")
    finally:
        manager.shutdown()
        store.close()
    print(
        f"| idle share of the device, median (range) of {given.rounds} runs of {SECONDS:g} s | |\n|---|---|"
    )
    print(line("if each wait were 20 ms exactly", asked))
    print(line("true, by arithmetic: all of a step but 12 ms", true))
    print(line("reported by vitprof", reported))
    print(line("of which because of the data wait", exposed))
    print(line("100% - GPU-util, an NVML-style counter read 5 times a second", counter))


if __name__ == "__main__":
    main()
