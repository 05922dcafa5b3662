"""Configuration of a job: its settings, and the data sets, models, strategies and parts to choose from.

Nothing here imports torch: the dashboard and the command line use it before a job exists.
"""

from vitprof.config.accelerators import Precision
from vitprof.config.run_config import (
    BUDGETS,
    CHOICES,
    CONFIG_COLUMNS,
    GROUPS,
    KNOBS,
    PARTS,
    Isolation,
    RunConfig,
    injection,
)

__all__ = [
    "BUDGETS",
    "CHOICES",
    "CONFIG_COLUMNS",
    "GROUPS",
    "KNOBS",
    "PARTS",
    "Isolation",
    "Precision",
    "RunConfig",
    "injection",
]
