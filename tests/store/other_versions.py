"""What another version of vitprof may have left in a store."""

from typing import Any

import sqlalchemy as sa

from vitprof.store import RunStore
from vitprof.store.database import runs


def rewrite(store: RunStore, run_id: int, config: dict[str, Any]) -> None:
    """Gives a run a config as plain values, readable here or not."""
    with store.transaction() as db:
        db.execute(sa.update(runs).where(runs.c.id == run_id).values(config=config))
