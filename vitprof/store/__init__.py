"""The run store: keeps runs, and lists, reads and changes them."""

from vitprof.store.database import (
    MAX_ID,
    STORE_VERSION,
    MissingError,
    UnreadableError,
    database_url,
)
from vitprof.store.run_store import MAX_NOTE, MAX_TAG, RunStore
from vitprof.store.stored_run import (
    SORTS,
    HelperCounts,
    RunGroup,
    RunQuery,
    RunRow,
    StoredRun,
    read_role,
    role_of,
)

__all__ = [
    "MAX_ID",
    "MAX_NOTE",
    "MAX_TAG",
    "SORTS",
    "STORE_VERSION",
    "HelperCounts",
    "MissingError",
    "RunGroup",
    "RunQuery",
    "RunRow",
    "RunStore",
    "StoredRun",
    "UnreadableError",
    "database_url",
    "read_role",
    "role_of",
]
