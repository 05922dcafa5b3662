"""The token of a dashboard, which a user types once, and the pass that their browser sends from then on."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

from vitprof.errors import VitprofError

VARIABLE = "VITPROF_TOKEN"
MADE_AT_START = "auto"
"""The variable's value for a token that is made at the start and printed, as in the container."""
SHORTEST = 16
"""Characters that a token needs; one made by `secrets.token_urlsafe()` has 43."""
KNOWN_FOR_S = 7 * 24 * 3600
"""Seconds for which a browser that is not closed is not asked for the token again."""
WINDOW_S = 60.0
FROM_ONE, FROM_ALL = 5, 60
"""Attempts allowed in `WINDOW_S` seconds: from one address, and from all of them together."""


@dataclass(frozen=True)
class Token:
    """The secret that opens the dashboard."""

    text: str
    """Its characters. Never shown, logged or put in a URL; only one that was made at the start is printed, once."""
    generated: bool
    """Whether it was made at the start, and so has to be printed."""

    def __repr__(self) -> str:
        return f"Token(generated={self.generated})"

    def is_right(self, given: str) -> bool:
        """Returns whether `given` is the token; takes the same time wherever they differ."""
        return hmac.compare_digest(_bytes(given), _bytes(self.text))

    def pass_for(self, now: float) -> str:
        """Returns the pass that a browser keeps once its user gave the token; `now` in seconds since 1970."""
        issued = str(int(now))
        return f"{issued}.{self._signature(issued)}"

    def is_pass(self, value: str, now: float) -> bool:
        """Returns whether `value` came from this token's `pass_for` at most `KNOWN_FOR_S` seconds before `now`."""
        issued, _, signature = value.partition(".")
        if not (issued.isdecimal() and issued.isascii() and len(issued) <= 12):
            return False
        right = hmac.compare_digest(_bytes(signature), _bytes(self._signature(issued)))
        return right and 0 <= now - int(issued) <= KNOWN_FOR_S

    def _signature(self, issued: str) -> str:
        return hmac.new(_bytes(self.text), f"vitprof pass {issued}".encode(), hashlib.sha256).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # a variable may hold bytes that are not text


def take_token(environ: MutableMapping[str, str]) -> Token | None:
    """Removes the token from the environment, where jobs would inherit it, and returns it; None where there is none.

    Raises `VitprofError` where it has fewer than `SHORTEST` characters.
    """
    text = environ.pop(VARIABLE, "").strip()
    if not text:
        return None
    if text == MADE_AT_START:
        return Token(secrets.token_urlsafe(), generated=True)
    if len(text) < SHORTEST:
        raise VitprofError(
            f"{VARIABLE} has {len(text)} characters: give {SHORTEST} or more, or {MADE_AT_START} for one that is made "
            "at the start"
        )
    return Token(text, generated=False)


class Attempts:
    """The recent attempts at the token. Right ones count too, so that a refusal does not reveal what was right."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tried: deque[tuple[float, str]] = deque()

    def wait_s(self, address: str) -> float:
        """Counts an attempt from `address` and returns 0; or, if it is one too many, returns the seconds to wait."""
        now = self._clock()
        while self._tried and now - self._tried[0][0] >= WINDOW_S:
            self._tried.popleft()
        mine = [when for when, where in self._tried if where == address]
        for times, most in ((mine, FROM_ONE), ([when for when, _ in self._tried], FROM_ALL)):
            if len(times) >= most:
                return max(WINDOW_S - (now - times[-most]), 1.0)
        self._tried.append((now, address))
        return 0.0
