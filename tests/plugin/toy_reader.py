"""The part of the package that reads; it may import PyTorch."""

from dataclasses import replace
from typing import Any

from vitprof.config import RunConfig
from vitprof.engine.loaders import open_loader
from vitprof.engine.loaders.contract import Loader
from vitprof.engine.storage.arrays import FORMAT, MemmapStorage
from vitprof.engine.transfer import BlockingCopy

__all__ = ["FORMAT", "ToyStorage", "ToyTransfer", "open_toy_loader"]


class ToyStorage(MemmapStorage):
    """As short as can be; what there is to write is in vitprof's own storages."""


def open_toy_loader(storage: Any, info: Any, config: RunConfig, **more: Any) -> Loader:
    return open_loader(storage, info, replace(config, loader="batches"), **more)


ToyTransfer = BlockingCopy
