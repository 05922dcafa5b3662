"""Page-locked ("pinned") host memory, which a GPU copies from without the CPU; ordinary memory if that is refused.

A system may refuse it because of a limit on locked memory, or for lack of RAM. A job then continues without it, and
says so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitprof.config.gpu_findings import Finding
from vitprof.errors import one_line

Tell = Callable[[str], None]
"""Takes a line to show to the user."""


class Pinning:
    """A source of memory that is page-locked as long as the system allows it. For any thread."""

    def __init__(self, *, wanted: bool, tell: Tell = lambda line: None) -> None:
        """`wanted` says whether there is a GPU to copy to; `tell` receives one line at the first refusal."""
        self.wanted = wanted
        self.refusal: Finding | None = None
        """Why the system refused it; None if it did not. After a refusal it is not requested again."""
        self._tell = tell

    @property
    def refused(self) -> bool:
        return self.refusal is not None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised tensor, page-locked if that is wanted and not refused."""
        if self.wanted and not self.refused:
            try:
                return torch.empty(shape, dtype=dtype, pin_memory=True)
            except RuntimeError as error:
                self._refuse(error)
        return torch.empty(shape, dtype=dtype)

    def pinned(self, tensor: Tensor) -> Tensor:
        """Returns a page-locked copy of `tensor`, or `tensor` itself if that is not wanted or refused."""
        if self.wanted and not self.refused:
            try:
                return tensor.pin_memory()
            except RuntimeError as error:
                self._refuse(error)
        return tensor

    def _refuse(self, error: RuntimeError) -> None:
        self.refusal = Finding(
            "note",
            "pinned memory",
            f"the system refused it ({one_line(error)}); batches are copied from pageable memory: slower, never during "
            "compute",
            "allow more locked memory (ulimit -l unlimited; docker run --ulimit memlock=-1), or free RAM",
        )
        self._tell(self.refusal.line)
