"""What a job is asked to do, and what it can be made of: settings, data sets, models, strategies and their parts.

Nothing here imports torch: the dashboard and the command line ask before a job exists.
"""

from vitprof.config.cards import Precision
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
