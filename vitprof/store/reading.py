"""SQLite files that can only be read here: on a read-only file system, or in another user's directory.

SQLite in WAL mode writes beside the file even to read it. Where it cannot, the URL must say so: `mode=ro` where the
last changes are still in the -wal file (SQLite then needs the -shm file too), `immutable` where there are none
(https://sqlite.org/wal.html#read_only_databases).
"""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path

import sqlalchemy as sa

from vitprof.errors import StoreError


def sqlite_file(url: sa.URL) -> Path | None:
    """Returns the file of an SQLite database; None for one in memory, and for any other database."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    name = url.database
    if name.startswith("file:") and "uri" in url.query:
        name = urllib.parse.unquote(name.removeprefix("file:"))
        if "memory" in url.query.get("mode", ""):
            return None
    return Path(name)


def cannot_be_written(path: Path) -> bool:
    """Returns whether a file exists, and it or its directory can only be read."""
    effective = {"effective_ids": True} if os.access in os.supports_effective_ids else {}
    return path.is_file() and not (
        os.access(path, os.W_OK, **effective) and os.access(path.parent, os.W_OK, **effective)
    )


def reading_url(url: sa.URL, path: Path) -> sa.URL:
    """Returns the URL that reads such a file. Raises `StoreError` where its last changes cannot be read."""
    wal, shm = (Path(f"{path}{suffix}") for suffix in ("-wal", "-shm"))
    changes = wal.is_file() and wal.stat().st_size > 0
    if changes and not shm.is_file():
        raise StoreError(
            f"{path} can only be read here, and its last changes are in {wal.name}, which cannot be read without "
            "writing beside it: copy both to a directory that can be written to, and set VITPROF_DB to that copy"
        )
    how = {"mode": "ro"} if changes else {"immutable": "1"}
    name = f"file:{urllib.parse.quote(str(path.absolute()))}"
    kept = {key: value for key, value in url.query.items() if key == "timeout"}
    return url.set(database=name, query={**kept, **how, "uri": "true"})
