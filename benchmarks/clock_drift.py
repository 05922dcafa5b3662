"""Watches a plain loop on the null device while its clock drifts.

    python -m benchmarks.clock_drift [--ppm -100 ... 100] [--seconds 600]

The loop reads each loss, so the device is idle when a batch is requested: all of the wait is exposed, and its length by
the host's clock alone is what both clocks together must say. Each drift runs starved and busy at once: they sleep most
of the time. Needs what `tests/nullcuda` needs.
"""

import argparse
import json
import tempfile
import threading
from pathlib import Path

import torch

from benchmarks.watch_matrix import CASES
from tests import nullcuda
from tests.nullcuda import scripts
from tests.watch.watching import LIMIT_S, Host


def loop(*, wait_s: float, work_s: float, seconds: float) -> str:
    """Trains for so long. Returns the time from a quarter of the batches on, as JSON; what the device knows of its work
    is of no use here, and would take longer than the training.
    """
    images = scripts.Images(wait_s, int(seconds / (wait_s + work_s)))
    model = scripts.Model(work_s).cuda()
    scripts._loop(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        images.loader(),
        torch.Tensor.backward,
        item=True,
    )
    (since_s, _), (until_s, _) = images.noted[images.n_batches // 4], images.noted[-1]
    return json.dumps({"since_s": since_s, "until_s": until_s})


def row(folder: Path, case: str, ppm: int, seconds: float) -> None:
    name = f"{case}{ppm}"
    host = Host("tests.nullcuda.scripts", nullcuda.environment(folder / name, drift_ppm=ppm))
    host.limit_s = 3 * seconds + LIMIT_S
    try:
        done = host.running("benchmarks.clock_drift").ok("loop", seconds=seconds, **CASES[case])
    finally:
        host.close()
    own, steps = json.loads(done.returned), done.steps
    kept = (steps["t_start_s"] >= own["since_s"]) & (steps["t_start_s"] < own["until_s"])
    step_s = steps["step_s"][kept].sum()
    waited, exposed = (
        steps[name][kept].sum() / step_s for name in ("data_wait_s", "exposed_wait_s")
    )
    print(
        f"| {ppm:+d} | {case} | {kept.sum()} | {waited:.2%} | {exposed:.2%} | {(exposed - waited) * 100:+.2f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ppm", type=int, nargs="+", default=[-100, -50, -20, 0, 20, 50, 100])
    parser.add_argument("--seconds", type=float, default=600)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(
            "| µs/s | case | steps | waited, by the host's clock | exposed wait, by both clocks | points |"
        )
        for ppm in given.ppm:
            pair = [
                threading.Thread(target=row, args=(Path(folder), case, ppm, given.seconds))
                for case in CASES
            ]
            for each in pair:
                each.start()
            for each in pair:
                each.join()


if __name__ == "__main__":
    main()
