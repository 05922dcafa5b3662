"""The `__iter__` of a loader's own class, which may do more than begin an iteration of PyTorch's: the
wait for the first batch has all of it."""

from __future__ import annotations

import functools
import inspect
from time import perf_counter
from types import ModuleType
from typing import Any

from vitprof.watch.patches import MARK, Replacements


class OwnIterations:
    """When the iterations of loaders with a class of their own were begun."""

    def __init__(self, dataloader: ModuleType) -> None:
        """`dataloader`: the module `torch.utils.data.dataloader`."""
        self._base = dataloader.DataLoader
        self._since_s: dict[int, float] = {}
        """By the loader's `id`, until PyTorch's iteration within it begins."""
        self._replacements = Replacements()

    def since_s(self, loader: Any, now_s: float) -> float:
        """Returns when the iteration that begins `now_s` was begun by the script. From its next iteration
        on, a class of the script's own is known."""
        began_s = self._since_s.pop(id(loader), now_s)
        self._follow(loader)
        return began_s

    def remove(self) -> None:
        """Takes the replacements back."""
        self._replacements.remove()

    def _follow(self, loader: Any) -> None:
        owner = next((c for c in type(loader).__mro__ if "__iter__" in vars(c)), self._base)
        own = vars(owner).get("__iter__")
        is_own = isinstance(loader, self._base) and owner is not self._base
        if is_own and not hasattr(own, MARK):
            self._replacements.replace(owner, "__iter__", self._noted)

    def _noted(self, own: Any) -> Any:
        @functools.wraps(own)
        def begin(loader: Any) -> Any:
            self._since_s[id(loader)] = perf_counter()
            return own(loader)

        @functools.wraps(own)
        def generate(loader: Any) -> Any:
            self._since_s[id(loader)] = perf_counter()
            yield from own(loader)

        return generate if inspect.isgeneratorfunction(own) else begin
