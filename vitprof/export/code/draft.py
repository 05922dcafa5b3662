"""The draft of a script: the fragments that were chosen, and what goes into their blanks."""

from __future__ import annotations

from dataclasses import dataclass, field

from vitprof.config import RunConfig
from vitprof.config.catalog import DatasetInfo
from vitprof.config.parts import LOADERS, STORAGES

AUTOCAST = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
"""`RunConfig.precision` -> the type for autocast, as a script spells it."""


@dataclass
class Draft:
    """A script that is being put together."""

    config: RunConfig
    """Resolved."""
    info: DatasetInfo
    names: list[str] = field(default_factory=list)
    """Names of the fragments, in their order."""
    blanks: dict[str, str] = field(default_factory=dict)
    """Name of a blank -> the text that goes into it."""
    path: str = "data"
    """The expression for where the storage is kept."""
    storage: str = ""
    """The expression for the storage that the loader reads."""
    block: str = ""
    """The expression for the neighbours that stay together, where blocks are shuffled."""
    opening: list[str] = field(default_factory=list)
    """Lines of `make_loader`."""

    @property
    def form(self) -> str:
        """Returns what the storage gives: "samples", "pixels" or "encoded"."""
        return STORAGES[self.config.storage or ""].form

    @property
    def folder(self) -> bool:
        """Returns whether the user's data are an image folder; else they are one file of arrays."""
        return self.info.kind == "jpeg" or self.config.storage == "files"

    @property
    def fills_buffers(self) -> bool:
        """Returns whether the loader puts batches into pinned buffers itself: it is in this process and makes whole
        batches.
        """
        return self.config.transfer in ("pinned", "stream") and self.config.loader in ("batches", "ahead", "threads")

    @property
    def copies_to_buffers(self) -> bool:
        """Returns whether the transfer must copy batches into pinned buffers, because nothing else pins them."""
        pins = self.config.loader == "dataloader" and self.config.pin_memory
        return (
            self.config.transfer in ("pinned", "stream")
            and self.form != "samples"
            and not (pins or self.fills_buffers or LOADERS[self.config.loader or ""].decodes)
        )
