"""The least and the most that each number may be: of a run, of a tournament, and of what is measured beside them.

Generous for any real use, and small enough that nothing counts, allocates or waits without end. Whatever asks for one
of these numbers (config, command line, form, URL) reads its limits here.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitprof.errors import ConfigError


@dataclass(frozen=True)
class Bounds:
    """What one number may be, both ends included."""

    least: float
    most: float
    whole: bool = True
    """Whether it has no fraction."""

    @property
    def allowed(self) -> str:
        """In words, for a message."""
        return f"give a {'whole ' if self.whole else ''}number from {self.least:,} to {self.most:,}"

    def check(self, name: str, value: object) -> None:
        """Raises `ConfigError` that names `name`, the value and the range."""
        kinds = (int,) if self.whole else (int, float)
        # no number at all, or NaN: every comparison with it is false
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.least <= value <= self.most:
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
    "telemetry_hz": Bounds(0.01, 50, whole=False),
}
"""By field of `RunConfig`: every one that is a number."""

DEVICE_BOUNDS: dict[str, Bounds] = {
    "cuda": Bounds(0, 999),
    "step_ms": Bounds(0, 60_000, whole=False),
    "sample_us": Bounds(0, 1_000_000, whole=False),
}
"""The numbers in the name of a device: a GPU's, and what a simulated one takes for each step and each sample."""

INJECTED_MS = Bounds(0.001, 60_000, whole=False)
"""A wait put into each batch on purpose."""

TOURNAMENT_BOUNDS: dict[str, Bounds] = {
    "batch_sizes": RUN_BOUNDS["batch_size"],
    "workers": RUN_BOUNDS["workers"],
    "repeats": Bounds(1, 100),
    "seconds": RUN_BOUNDS["seconds"],
}
"""By field of `TournamentSpec`: every one that is a number, or a list of numbers."""

MORE_ROUNDS = 7
"""Rounds that a tournament adds at most until it is decided: in simulation 3 to 5 in all are enough."""
MOST_TRIALS = 1000
"""A tournament of more would take days; the leaderboard of so many is not read by anyone."""
ANCHOR_REPEATS = Bounds(0, 100)
"""Times that each anchor of a headroom is run."""
TUNING_S = RUN_BOUNDS["seconds"]
"""Time for a tuning."""
LOADING_S = Bounds(0.1, 600, whole=False)
"""Time for the loader-only run of a prediction."""
WATCHED_STEPS = RUN_BOUNDS["steps"]
"""Training steps after which a watched script is ended, or goes on unobserved."""
LEAST_PER_S = Bounds(1e-6, 1e12, whole=False)
"""Samples a second that a check may demand."""

LIST_PAGE = Bounds(1, 2**31 - 1)
"""Runs on a page of a list, and the number of that page."""
MAX_SEARCH = 200
"""Characters of a search in a list of runs. Each word is looked for in every text of every run."""
MOST_FILTERED = 100
"""Values of one filter of such a list."""
