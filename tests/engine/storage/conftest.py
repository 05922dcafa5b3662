"""Photos that a test may damage, and a disk that is soon full."""

from tests.engine.storage.preparing import few_photos  # noqa: F401
from tests.engine.storage.writer_helpers import small_disk  # noqa: F401
