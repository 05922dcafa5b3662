"""Homes with data sets, photos that a test may damage, and a disk that is soon full."""

from tests.engine.storage.preparing import few_photos, small_disk  # noqa: F401
from tests.engine_fixtures import digits_home, full_home, photos_home, shared_home, small_home  # noqa: F401
