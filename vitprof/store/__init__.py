"""The run store: keeps runs, and lists, reads and changes them."""

from vitprof.store.database import MAX_ID, STORE_VERSION, database_url
from vitprof.store.listing import SORTS, SPARK_BINS, LiveRun, RunQuery, RunRow
from vitprof.store.run_store import MAX_NOTE, MAX_TAG, RunStore
from vitprof.store.stored_run import RunGroup, StoredRun, UnreadableRun, is_alive, read_role, role_of, this_program

__all__ = ["MAX_ID", "MAX_NOTE", "MAX_TAG", "SORTS", "SPARK_BINS", "STORE_VERSION", "LiveRun", "RunGroup", "RunQuery"]
__all__ += ["RunRow", "RunStore", "StoredRun", "UnreadableRun", "database_url", "is_alive", "read_role", "role_of"]
__all__ += ["this_program"]
