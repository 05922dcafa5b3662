"""Hydra, which may run several jobs in one process (`--multirun`): the run is that of the first."""

from __future__ import annotations

import sys
from typing import Any

NOT_RECORDED = "hydra's next job is not recorded: this run is of the first; watch another one by its values alone"


class Jobs:
    """The jobs of this process so far."""

    def __init__(self) -> None:
        self._last: Any = None

    def begins_another(self) -> bool:
        """Returns whether hydra runs another job than at the last call."""
        before = self._last
        try:
            self._last = sys.modules["hydra.core.hydra_config"].HydraConfig.get().job.num
        except Exception:  # not imported, not used here, or without a number, as that of one job
            return False
        return before not in (None, self._last)
