"""Limits of all numbers that can be set, for config, command line, forms and URLs.

They are generous for any real use, and small enough that nothing counts, allocates or waits without end.
"""

from dataclasses import dataclass

from vitprof.errors import ConfigError


@dataclass(frozen=True)
class Bounds:
    """The range of a number, both ends included."""

    least: float
    most: float
    whole: bool = True

    @property
    def allowed(self) -> str:
        """Returns the range in words, for an error message."""
        number = "whole number" if self.whole else "number"
        return f"give a {number} from {self.least:,} to {self.most:,}"

    def check(self, name: str, value: object) -> None:
        """Raises `ConfigError` that names `name`, the value and the range if `value` is outside it or no
        number.
        """
        kinds = (int,) if self.whole else (int, float)
        # True is an int in Python
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ConfigError(name, value, self.allowed)
        # NaN is refused too: every comparison with it is false
        if not self.least <= value <= self.most:
            raise ConfigError(name, value, self.allowed)


DAY_S = 86_400

RUN_BOUNDS: dict[str, Bounds] = {
    "n_images": Bounds(1, 10_000_000),  # photos of 0.1 MB: 1 TB
    "batch_size": Bounds(1, 1_000_000),
    "epochs": Bounds(1, 1_000_000),
    "steps": Bounds(1, 100_000_000),  # a day of the shortest steps
    "seconds": Bounds(0.001, 30 * DAY_S, whole=False),
    "image_size": Bounds(1, 4096),
    "lr": Bounds(1e-12, 1000, whole=False),
    "seed": Bounds(0, 2**32 - 1),  # what NumPy takes
    "workers": Bounds(0, 512),
    "prefetch_factor": Bounds(1, 1000),
    "cache_mb": Bounds(0.001, 10_000_000, whole=False),
    "slow_mb_s": Bounds(0.1, 1_000_000, whole=False),
    "slow_latency_ms": Bounds(0, 600_000, whole=False),
    "warmup_steps": Bounds(0, 1_000_000),
    "least_steps": Bounds(0, 1_000_000),
    "threads": Bounds(0, 1024),
    "ranks": Bounds(1, 64),
    "telemetry_hz": Bounds(0.01, 50, whole=False),
}
"""Field of `RunConfig` -> bounds, for every field that is a number."""
WORKER_THREADS = Bounds(1, 512)
"""Threads of an operation in a worker of a user's own script."""

DEVICE_BOUNDS: dict[str, Bounds] = {
    "cuda": Bounds(0, 999),
    "step_ms": Bounds(0, 60_000, whole=False),
    "sample_us": Bounds(0, 1_000_000, whole=False),
}
"""Bounds of the numbers in a device's name: a GPU's number, and a simulated one's times for each step and sample."""

INJECTED_MS = Bounds(0.001, 60_000, whole=False)
"""Milliseconds of a wait that is added to each batch on purpose."""

TOURNAMENT_BOUNDS: dict[str, Bounds] = {
    "batch_sizes": RUN_BOUNDS["batch_size"],
    "workers": RUN_BOUNDS["workers"],
    "repeats": Bounds(1, 100),
    "seconds": RUN_BOUNDS["seconds"],
}
"""Field of `TournamentSpec` -> bounds, for every field that is a number or a list of numbers."""

LONGEST_TIMES = 10
"""A run limited in seconds may take up to this many times as long to reach its least number of
steps."""
MORE_ROUNDS = 7
"""Most rounds that a tournament adds until it is decided. In simulations 3 to 5 rounds in all are enough."""
MOST_TRIALS = 1000
"""Most trials of a tournament. More would take days, and nobody reads a leaderboard of that length."""
ANCHOR_REPEATS = Bounds(0, 100)
WATCHED_STEPS = RUN_BOUNDS["steps"]
"""Training steps after which a watched script is ended, or is no longer watched."""
LEAST_PER_S = Bounds(1e-6, 1e12, whole=False)
PORT = Bounds(1, 65_535)

PRUNED_DAYS = Bounds(0, 36_500, whole=False)
"""Days since a run was deleted, from which it is erased."""
LIST_PAGE = Bounds(1, 2**31 - 1)
"""Runs on a page of a list, and the number of that page."""
MAX_SEARCH = 200
"""Most characters of a search in a list of runs. Each word is looked for in every text of every run."""
MOST_FILTERED = 100
"""Most values of one filter of such a list."""
