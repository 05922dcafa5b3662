"""Numbers as a person reads them: a unit, three significant digits, and "n/a" for what is not available."""

import datetime as dt
import math

NOT_AVAILABLE = "n/a"
MOST_DECIMALS = 6
"""Digits of a number behind the point."""
LEAST_S = 0.5e-9
"""The shortest time that is not shown as 0: less is what rounding left of a difference, as clocks count nanoseconds."""


def number(value: float | int | None, unit: str = "") -> str:
    """Returns `value` with three significant digits, thousands separators and the unit: 12,500 samples/s."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    rounded = float(f"{value:.3g}")
    decimals = 0
    if abs(rounded) < 0.5 * 10**-MOST_DECIMALS:
        # 0.000000 would look measured to six digits
        rounded = 0.0
    else:
        digits_before = math.floor(math.log10(abs(rounded))) + 1
        decimals = min(max(0, 3 - digits_before), MOST_DECIMALS)
    words = f"{rounded:,.{decimals}f}"
    return f"{words} {unit}" if unit else words


def capitalised(words: str) -> str:
    """Returns words with a capital letter in front, as a sentence begins; the others stay as they are."""
    return words[:1].upper() + words[1:]


def sentence(words: str) -> str:
    """Returns words as a sentence: a capital letter in front, and one full stop at the end."""
    return f"{capitalised(words).rstrip('.')}."


def count(n: int, noun: str) -> str:
    """Returns a number of things: 1 run, 12,000 runs."""
    plural = noun if n == 1 else f"{noun}s"
    return f"{n:,} {plural}"


def steps(n_steady: int, n_epoch_starts: int = 0) -> str:
    """Returns how many steps a figure rests on, by what they are: 52 steady steps and 3 epoch starts.

    The first step of a later epoch is no steady one: it waits for workers to start. Both together are
    the steps of the training time.
    """
    steady = count(n_steady, "steady step")
    if not n_epoch_starts:
        return steady
    return f"{steady} and {count(n_epoch_starts, 'epoch start')}"


def cores(used: float, of_cores: float = math.nan) -> str:
    """Returns how much of the CPU was used, with one decimal: 1.4 cores, 1.4 of 2 cores."""
    if not math.isfinite(used):
        return NOT_AVAILABLE
    all_of_them = f" of {of_cores:.0f}" if math.isfinite(of_cores) else ""
    return f"{max(used, 0.0):.1f}{all_of_them} cores"


def ordinal(number: int) -> str:
    """Returns 1st, 2nd, 3rd, 11th, 113th."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def percent(share: float | None) -> str:
    """Returns a share (0 to 1) in percent: with one decimal below 10%, and where it would be shown as 100%
    but is not.
    """
    if share is None or not math.isfinite(share):
        return NOT_AVAILABLE
    is_small = share < 0.0995
    is_almost_all = 0.995 <= share < 0.9995
    decimals = 1 if is_small or is_almost_all else 0
    return f"{share * 100:.{decimals}f}%"


def seconds(value: float | None) -> str:
    """Returns a duration in the unit that suits it: 85 µs, 12.3 ms, 4.56 s, 3 min 20 s, 1 h 05 min."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    # a value that rounds up to the next unit is shown in that unit
    shown = abs(float(f"{value:.3g}"))
    if shown < LEAST_S:
        return number(0, "µs")
    if shown < 1e-3:
        return number(value * 1e6, "µs")
    if shown < 1:
        return number(value * 1e3, "ms")
    if shown < 100:
        return number(value, "s")
    if round(value) < 3600:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest} s"
    hours, rest = divmod(round(value / 60), 60)
    return f"{hours} h {rest:02d} min"


def rough_time(value: float) -> str:
    """Returns an estimate in seconds, with one digit: 8 s, 40 s, 2 min."""
    if value >= 95:  # 95 s are 100 s with one digit, and 2 min
        return f"{value / 60:.0f} min"
    return f"{float(f'{value:.1g}'):.0f} s"


def moment(epoch_s: float) -> str:
    """Returns the local time of `epoch_s` (seconds since 1970, UTC): 10:32, with the date unless it is today."""
    at = dt.datetime.fromtimestamp(epoch_s)
    return f"{at:%H:%M}" if at.date() == dt.datetime.now().date() else f"{at:%Y-%m-%d %H:%M}"


def size(n_bytes: float | int | None) -> str:
    """Returns a number of bytes in binary units: 1.23 GiB."""
    if n_bytes is None or not math.isfinite(n_bytes):
        return NOT_AVAILABLE
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 999.5:  # three digits, and no "1,020 MiB"
            return number(value, unit)
        value /= 1024
    return number(value, "TiB")


def money(value: float | None, currency: str) -> str:
    """Returns an amount with cents, below 1 with three significant digits: 1,234.50 USD, 0.00299 USD."""
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    is_small = abs(value) < 0.995
    amount = _significant(value) if is_small else f"{value:,.2f}"
    return f"{amount} {currency}" if currency else amount


def _significant(value: float) -> str:
    """Returns an amount below 1 with three significant digits, and never as a power of ten."""
    if not value:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}"


def energy(joules: float | None) -> str:
    """Returns an amount of energy in the unit that suits it: 860 J, 1.20 kJ, 3.40 MJ."""
    if joules is None or not math.isfinite(joules):
        return NOT_AVAILABLE
    shown = abs(float(f"{joules:.3g}"))
    if shown < 1e3:
        return number(joules, "J")
    if shown < 1e6:
        return number(joules / 1e3, "kJ")
    return number(joules / 1e6, "MJ")
