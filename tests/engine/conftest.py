"""Homes with data sets, for all tests of the engine."""

from tests.engine_fixtures import digits_home, full_home, photos_home, shared_home, small_home  # noqa: F401
