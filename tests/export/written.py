"""What an exporter writes into a file, as bytes."""

import io
from collections.abc import Callable, Iterable
from typing import Any

from vitprof.store import RunStore, StoredRun


def written(
    write: Callable[..., object], store: RunStore, runs: Iterable[StoredRun], **options: Any
) -> bytes:
    file = io.BytesIO()
    write(store, list(runs), file, **options)
    return file.getvalue()
