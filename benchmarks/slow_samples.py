"""Shows whether the slow files of a set are found, and whether a training without them gains what was said.

    python -m benchmarks.slow_samples [--workers 0 2] [--times 1] [--folder FOLDER]

Makes 5,000 JPEGs of 120x96, of which 20 have 5000x3500 pixels, and trains a tiny model on them below `vitprof watch`,
for one epoch (`benchmarks.slow_samples_script`); then again with small ones in place of the 20, by turns. A row has how
many of the 20 are listed, the others that are, and the share of the time that is saved: as vitprof says after the first
run, and by the script's own clock. A folder that was made before is used again. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.script_run import watch_script
from vitprof.analysis.timing.slow_samples import SlowSamples, slow_samples

N_IMAGES = 5_000
N_SLOW = 20
CLASSES = 10
SMALL = (120, 96)
LARGE = (5000, 3500)
DONE = "made"
"""File in the folder that says that all is there."""


def slow_indices() -> list[int]:
    """Returns the indices of the large images, by chance."""
    chosen = np.random.default_rng(7).choice(N_IMAGES, N_SLOW, replace=False)
    return sorted(chosen.tolist())


def make(folder: Path) -> None:
    """Makes both sets, as ImageFolder reads them: "with" and "without" the large images."""
    random = np.random.default_rng(1)
    slow = set(slow_indices())
    for index in range(N_IMAGES):
        noise = random.integers(0, 256, (12, 15, 3), dtype=np.uint8)
        image = Image.fromarray(noise).resize(SMALL)
        name = f"{index * CLASSES // N_IMAGES}/{index:04d}.jpg"
        for kind in ("with", "without"):
            path = folder / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            is_large = kind == "with" and index in slow
            (image.resize(LARGE) if is_large else image).save(path)
    (folder / DONE).touch()


@dataclass(frozen=True)
class Watched:
    """A run of the script."""

    took_s: float
    """After the warm-up, by its own clock."""
    found: SlowSamples | None


def watch(images: Path, workers: int) -> Watched:
    """Runs the script once below `vitprof watch`."""
    arguments = ["-m", "benchmarks.slow_samples_script", str(images), str(workers)]
    with tempfile.TemporaryDirectory() as folder:
        left = watch_script(arguments, Path(folder))
    (took_s,) = [float(line) for line in left.printed.splitlines() if line[:1].isdigit()][:1]
    return Watched(took_s, slow_samples(left.run.facts, left.run.environment, left.steps))


def row(workers: int, with_slow: Watched, without: Watched) -> str:
    """Returns the table's row of two runs."""
    found = with_slow.found
    if found is None:
        raise SystemExit("no sample is listed")
    slow = set(slow_indices())
    n_found = sum(sample.index in slow for sample in found.listed)
    others = [sample for sample in found.listed if sample.index not in slow]
    longest_s = max((sample.longest_s for sample in others), default=0.0)
    true_frac = 1 - without.took_s / with_slow.took_s
    n_still = 0 if without.found is None else len(without.found.listed)
    return (
        f"| {workers} | {n_found} of {N_SLOW} | {len(others)} ({longest_s:.3f} s at most) | {n_still} | "
        f"{found.median_s * 1e3:.2f} ms | {found.slowest.longest_s:.3f} s | {found.saved_frac:.1%} | {true_frac:.1%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        if not (folder / DONE).exists():
            make(folder)
        print("| workers | found | others | listed without | median | slowest | said | measured |")
        print("|---|---|---|---|---|---|---|---|")
        for _ in range(given.times):
            for workers in given.workers:
                runs = [watch(folder / kind, workers) for kind in ("with", "without")]
                print(row(workers, *runs), flush=True)


if __name__ == "__main__":
    main()
