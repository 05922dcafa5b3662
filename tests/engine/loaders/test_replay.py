"""Batches that are kept and given again: copies, bounds, what is closed, and jobs that train on them."""

from collections.abc import Generator, Sequence

import pytest
import torch

from tests.engine_fixtures import Recorded, descendants, trained, vitprof_threads
from vitprof.engine import pipeline
from vitprof.engine.loaders.contract import Batch
from vitprof.errors import JobStopped


class Counting:
    """Batches of these sizes; every image of batch k is k. Each is made in the memory of the one before."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.fetched = self.closed = 0
        self._memory = torch.empty(max(sizes), 1, 2, 2, dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.sizes)

    def epoch(self, epoch: int) -> Generator[Batch, None, None]:
        for k, size in enumerate(self.sizes):
            self.fetched += 1
            images = self._memory[:size].fill_(k)
            yield Batch(images, torch.full((size,), k), unreadable=("one",) if k == 1 else ())

    def close(self) -> None:
        self.closed += 1


def kept(loader: Counting) -> pipeline.ReplayLoader:
    return pipeline.keep_batches(loader, torch.Tensor.clone, lambda: False)


class TestKeepBatches:
    def test_an_epoch_has_as_many_batches_as_before_of_copies(self) -> None:
        loader = Counting([4] * 20)
        again = kept(loader)
        assert (len(again), loader.closed) == (20, 1)  # before the first is given
        for epoch in (0, 1):
            batches = list(again.epoch(epoch))
            wanted = [*range(8), *range(8), *range(4)]
            assert [int(batch.labels[0]) for batch in batches] == wanted
            assert [batch.images.unique().tolist() for batch in batches] == [[k] for k in wanted]
            assert all(batch.unreadable == () for batch in batches)
        assert loader.fetched == 8

    def test_the_last_smaller_batch_and_one_without_samples_are_left_out(self) -> None:
        assert [len(b.labels) for b in kept(Counting([4, 4, 1])).epoch(0)] == [4, 4, 4]
        assert [len(b.labels) for b in kept(Counting([3])).epoch(0)] == [3]
        assert [len(b.labels) for b in kept(Counting([0, 4, 4])).epoch(0)] == [4, 4, 4]
        assert list(kept(Counting([0, 0])).epoch(0)) == []

    @pytest.mark.parametrize(("bound", "n"), [(1, 1), (16, 1), (32, 2), (47, 2), (48, 3)])
    def test_memory_is_bounded(self, monkeypatch: pytest.MonkeyPatch, bound: int, n: int) -> None:
        monkeypatch.setattr(pipeline, "MOST_BYTES", bound)  # a batch has 4 * 4 bytes
        assert len(kept(Counting([4] * 9)).kept) == n

    def test_stop(self) -> None:
        loader = Counting([4] * 3)
        with pytest.raises(JobStopped):
            pipeline.keep_batches(loader, torch.Tensor.clone, lambda: True)
        assert loader.closed == 1


@pytest.mark.usefixtures("shared_home")
class TestJobs:
    def run(self, where: str, **config: object) -> Recorded:
        return trained(**({"steps": 24, "evaluate": False, "replay": where} | config))

    def test_it_trains(self) -> None:
        run = self.run("host", strategy="per-sample", steps=None, epochs=1)
        assert len(run.marks) == 19
        assert set(run["samples"]) == {32}  # the last one, of 24, is not among the eight
        assert run["loss"][-8:].mean() < run["loss"][:8].mean()
        assert [line for line in run.notices if "8 batches again and again" in line]

    def test_the_same_pixels_as_without(self) -> None:
        losses = [
            self.run(w, strategy=s, steps=8)["loss"]
            for w in ("device", "host")
            for s in ("memory", "prefetch")
        ]
        losses.append(trained(strategy="memory", steps=8, evaluate=False)["loss"])
        assert all((loss == losses[-1]).all() for loss in losses)

    @pytest.mark.parametrize("strategy", ["workers", "prefetch", "device"])
    def test_what_is_copied(self, strategy: str) -> None:
        """On a simulated device copies take time that is known."""
        simulated = {"device": "simulated:1,0", "strategy": strategy}
        assert (self.run("device", **simulated)["h2d_s"] == 0).all()
        copied = self.run("host", **simulated)["h2d_s"]
        assert (copied == 0).all() if strategy == "device" else (copied > 10e-6).all()

    def test_no_worker_and_no_thread_lives_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        left: list[object] = []
        whole = pipeline.ReplayLoader.epoch

        def looking(self: pipeline.ReplayLoader, epoch: int) -> Generator[Batch, None, None]:
            left.extend(descendants())
            left.extend(name for name in vitprof_threads() if "decode" in name or "ahead" in name)
            return whole(self, epoch)

        monkeypatch.setattr(pipeline.ReplayLoader, "epoch", looking)
        for strategy in ("workers", "memory-ahead"):
            self.run("host", strategy=strategy, steps=2)
        assert left == []

    def test_loader_only_measures_the_transfer_alone(self) -> None:
        run = self.run("host", strategy="memory", device="simulated:1,0", loader_only=True)
        assert (run["compute_s"] == 0).all()
        assert (run["h2d_s"] > 0).all()
