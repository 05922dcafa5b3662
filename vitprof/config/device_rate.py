"""What an hour of one device costs, as the user says in the environment.

vitprof knows no price by itself. What idle time costs in money follows from this one.
"""

import os
import re
from dataclasses import dataclass

from vitprof.errors import VitprofError

DEVICE_RATE = "VITPROF_DEVICE_RATE"
"""Environment variable with the price of an hour of one device, and its currency if one is given."""
PRICE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(?:\s*([^\W\d_]{1,8}|[$€£¥₹]))?")
"""A number, and then a currency of at most eight letters, or a common sign of one."""
MOST = 1e6
"""The highest price of an hour that is taken for meant."""


@dataclass(frozen=True, slots=True)
class DeviceRate:
    """The price of an hour of one device."""

    per_hour: float
    """How much, above 0."""
    currency: str
    """Of which currency; "" where none was given."""


def device_rate() -> DeviceRate | None:
    """Returns the price of an hour of one device; None where none is given.

    Raises `VitprofError` for a value that is no price.
    """
    given = os.environ.get(DEVICE_RATE, "").strip()
    if not given:
        return None
    found = PRICE.fullmatch(given)
    per_hour = 0.0 if found is None else float(found[1])
    if found is None or not 0 < per_hour <= MOST:
        raise VitprofError(
            f"{DEVICE_RATE}: {given!r} is no price of an hour of one device; give a number above 0, "
            "and a currency after it if you like, such as 2.50 or '2.50 USD'"
        )
    return DeviceRate(per_hour, found[2] or "")


def rate_if_valid() -> DeviceRate | None:
    """Returns the same; None also for a value that is no price.

    Commands and pages say once what is wrong with such a value (`device_rate`). Then they go on
    without money: a run is worth more than its price.
    """
    try:
        return device_rate()
    except VitprofError:
        return None
