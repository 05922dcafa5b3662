"""SPDL's pipeline as a loader: its threads make whole batches, which come in the order of the
samples.
"""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from spdl.pipeline import PipelineBuilder

from vitprof.engine.loaders import batch_assembly, batches
from vitprof.engine.loaders.contract import Batch, Schedule


class SpdlLoader(batches.BatchReader):
    """A loader with a pipeline for each epoch, as SPDL's documentation has it.

    An epoch ends the one before it.
    """

    def __init__(
        self, storage: Any, info: Any, config: Any, *, train: bool, buffer: Any = None, **_: Any
    ) -> None:
        maker = batch_assembly.open_maker(storage, info, config, train=train)
        super().__init__(Schedule(storage, config, train=train), batches.in_buffers(maker, buffer))
        self._workers = config.workers or 1
        self._depth = config.prefetch_factor or 1
        self._running: Generator[Batch, None, None] | None = None
        # Before threads set theirs, as in `batches.PoolLoader`.
        torch.get_num_threads()

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        self.close()
        self._running = self._batches(epoch)
        return self._running

    def _batches(self, epoch: int) -> Generator[Batch, None, None]:
        def make(indices: torch.Tensor) -> Batch | Exception:
            try:
                return self._make(epoch, indices)
            except Exception as error:
                # SPDL would log it and go on without the batch.
                return error

        stages = PipelineBuilder[Any, Any]().add_source(self._schedule.batches(epoch))
        with ThreadPoolExecutor(self._workers, "vitprof-spdl", torch.set_num_threads, (1,)) as pool:
            stages.pipe(
                make, executor=pool, concurrency=self._workers, output_order="input"
            ).add_sink(self._depth)
            pipeline = stages.build(num_threads=1)
            with pipeline.auto_stop():
                for batch in pipeline:
                    if isinstance(batch, Exception):
                        raise batch
                    yield batch

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
