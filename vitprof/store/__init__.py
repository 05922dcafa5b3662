"""The run store: keeps runs, and lists, reads and changes them."""

from vitprof.store.database import database_url
from vitprof.store.listing import SORTS, SPARK_BINS, LiveRun, RunQuery, RunRow
from vitprof.store.run_store import MAX_NOTE, MAX_TAG, RunStore
from vitprof.store.schema import MAX_ID, STORE_VERSION
from vitprof.store.stored_run import StoredRun, UnreadableRun

__all__ = [
    "MAX_ID",
    "MAX_NOTE",
    "MAX_TAG",
    "SORTS",
    "SPARK_BINS",
    "STORE_VERSION",
    "LiveRun",
    "RunQuery",
    "RunRow",
    "RunStore",
    "StoredRun",
    "UnreadableRun",
    "database_url",
]
