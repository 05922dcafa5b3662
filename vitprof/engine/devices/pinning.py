"""Page-locked ("pinned") host memory, which a GPU copies from without the CPU; ordinary memory where it is refused.

A system may refuse it for a limit on locked memory, or for lack of RAM. A job then goes on without, and says so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitprof.config.gpu_findings import Finding, pinning_refused
from vitprof.errors import one_line

Tell = Callable[[str], None]
"""Takes a line that people should read."""


class Pinning:
    """Gives memory that is page-locked as long as the system allows it. For any thread."""

    def __init__(self, *, wanted: bool, tell: Tell = lambda line: None) -> None:
        """`wanted`: whether there is a GPU to copy to. `tell` gets one line at the first refusal."""
        self.wanted = wanted
        self.refusal: Finding | None = None
        """Why the system refused it, if it did; nobody asks again then."""
        self._tell = tell

    @property
    def refused(self) -> bool:
        return self.refusal is not None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised tensor."""
        if self.wanted and not self.refused:
            try:
                return torch.empty(shape, dtype=dtype, pin_memory=True)
            except RuntimeError as error:
                self._refuse(error)
        return torch.empty(shape, dtype=dtype)

    def pinned(self, tensor: Tensor) -> Tensor:
        """Returns a page-locked copy of `tensor`; itself where that is not wanted or refused."""
        if self.wanted and not self.refused:
            try:
                return tensor.pin_memory()
            except RuntimeError as error:
                self._refuse(error)
        return tensor

    def _refuse(self, error: RuntimeError) -> None:
        self.refusal = pinning_refused(one_line(error))
        self._tell(self.refusal.line)
