"""Homes with data sets, and a launcher that has PyTorch loaded."""

from tests.engine_fixtures import digits_home, full_home, launcher, small_home  # noqa: F401
