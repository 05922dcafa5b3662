"""From a config to batches: what a run reports about its storage, its place and its cache, and how it fails."""

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine_fixtures import Recorded, trained
from vitprof import home
from vitprof.engine import transfer
from vitprof.engine.locations.throttle import TokenBucket
from vitprof.errors import JobStopped, SampleError
from vitprof.measure.devices import Device

PHOTOS: dict[str, Any] = {
    "dataset": "photos",
    "n_images": 20,
    "batch_size": 4,
    "steps": 3,
    "evaluate": False,
}


@pytest.fixture
def damaged(few_photos: Path) -> Path:
    """A file of the training split whose second half is zeros; its length is what it was."""
    path = sorted(few_photos.glob("train/*/*.jpg"))[5]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    return path


@pytest.mark.usefixtures("small_home")
class TestFacts:
    def test_a_prepared_storage(self) -> None:
        first = trained(strategy="preprocessed", steps=2).values
        again = trained(strategy="preprocessed", steps=2).values
        directory = home.home() / "prepared" / "digits" / "memmap"
        lengths = sum(path.stat().st_size for path in directory.iterdir())
        assert lengths <= first["storage_bytes"] <= lengths + 4096 * 8
        assert first["storage_prepare_s"] > 0
        assert again["storage_prepare_s"] == first["storage_prepare_s"]  # of when it was made
        assert (first["stage_s"], first["stage_bytes"]) == (0.0, 0)
        assert math.isnan(first["cache_hit_frac"])
        own_files = trained(strategy="per-sample", steps=2).values
        assert own_files["storage_prepare_s"] == 0.0

    @pytest.mark.parametrize(("budget_mb", "hits"), [(0.2352, 0.5), (100.0, 1.0)])
    def test_the_cache_tells_its_hit_rate(self, budget_mb: float, hits: float) -> None:
        run = trained(
            strategy="cache", cache_mb=budget_mb, epochs=1, loader_only=True
        )  # 600 samples of 784 bytes
        assert (run.values["cache_hit_frac"], run["samples"].sum()) == (hits, 600)

    @pytest.mark.parametrize("strategy", ["ram-disk", "staged"])
    def test_copies_are_counted_apart(self, strategy: str) -> None:
        fast = {"slow_mb_s": 1000.0, "slow_latency_ms": 0.0} if strategy == "staged" else {}
        run = trained(strategy=strategy, steps=2, **fast)
        source = home.home() / "prepared" / "digits" / "files"
        files = [
            p
            for p in source.rglob("*")
            if p.is_file() and (strategy == "ram-disk" or "/test-" not in str(p))
        ]
        assert run.values["stage_bytes"] == sum(p.stat().st_size for p in files)
        assert run.values["stage_s"] > 0
        stage = next((end - start) for name, start, end in run.phases if name == "stage")
        assert stage >= run.values["stage_s"]
        assert any(name == "staging" for name, _, _ in run.stages)
        assert ("throttled" in run.notices[0]) == (strategy == "staged")

    def test_evaluation_is_not_held_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not what is measured, and through a network drive it takes minutes."""
        events, held_back = Recorded(), []

        def wait(bucket: TokenBucket, *asked: Any) -> None:
            held_back.append(events.stages[-1][0])

        monkeypatch.setattr(TokenBucket, "wait", wait)
        trained(events=events, strategy="slow-drive", steps=2, workers=0, slow_latency_ms=6e5)
        assert held_back == ["training"] * 64
        assert math.isfinite(events.values["test_loss"])


@pytest.mark.usefixtures("small_home")
def test_augmentation_changes_what_is_trained_on() -> None:
    kinds = ("off", "cpu", "device", "device")
    losses = [
        trained(strategy="memory", steps=2, evaluate=False, augment=kind)["loss"] for kind in kinds
    ]
    assert len({round(float(loss[0]), 6) for loss in losses}) == 3
    assert np.array_equal(losses[-1], losses[-2])  # the seed decides


@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize("wanted", [True, False])
def test_cudnn_is_told_whether_to_try_its_algorithms(wanted: bool) -> None:
    trained(strategy="memory", steps=1, cudnn_benchmark=wanted, evaluate=False)
    assert torch.backends.cudnn.benchmark is wanted


@pytest.mark.usefixtures("few_photos")
@pytest.mark.parametrize("strategy", ["threads", "prefetch", "device"])
def test_train_and_evaluate_photos(strategy: str) -> None:
    more: dict[str, Any] = {
        "prefetch": {"workers": 1, "precision": "bf16"},
        "device": {"augment": "device"},
    }
    run = trained(**(PHOTOS | {"evaluate": True, "strategy": strategy} | more.get(strategy, {})))
    assert run["samples"].tolist() == [4] * 3
    assert np.isfinite(run["loss"]).all()
    assert 0 <= run.values["test_accuracy"] <= 1
    assert run.values["n_train"] == 20


class TestUnreadable:
    @pytest.mark.parametrize(
        ("strategy", "workers"), [("threads", None), ("prefetch", 1), ("ram-disk", 0)]
    )
    def test_fails_by_its_own_name_or_is_left_out(
        self, damaged: Path, strategy: str, workers: int | None
    ) -> None:
        """Also where a copy on a RAM disk was read, which is gone when somebody reads the message."""
        job = PHOTOS | {
            "steps": None,
            "epochs": 2,
            "loader_only": True,
            "strategy": strategy,
            "workers": workers,
        }
        with pytest.raises(SampleError) as caught:
            trained(**job)
        assert str(damaged) in str(caught.value)
        assert "cannot be decoded" in str(caught.value)
        run = trained(**job, skip_unreadable=True)
        assert run["samples"].sum() == 2 * 19
        assert run.values["n_unreadable"] == 2  # once in each epoch
        assert len([line for line in run.notices if str(damaged) in line]) == 1

    @pytest.mark.parametrize("evaluate", [False, True])
    def test_whole_batches_that_cannot_be_read_keep_no_buffer(
        self, few_photos: Path, monkeypatch: pytest.MonkeyPatch, evaluate: bool
    ) -> None:
        for split in ("train", "test"):
            for path in sorted(few_photos.glob(f"{split}/*/*.jpg"))[1:]:
                path.write_bytes(b"")
        rings: list[transfer.Ring] = []

        class Kept(transfer.Ring):
            def __init__(self, device: Device) -> None:
                super().__init__(device)
                rings.append(self)

        monkeypatch.setattr(transfer, "Ring", Kept)
        more: dict[str, Any] = {"strategy": "threads", "device": "simulated:0.1,1", "epochs": 3}
        more |= {"steps": None, "batch_size": 1, "evaluate": evaluate, "skip_unreadable": True}
        run = trained(**PHOTOS | more, transfer="pinned")
        assert run["samples"].tolist() == [1] * 3
        assert len(rings) == 1 + evaluate
        assert not any(ring._lent for ring in rings)

    def test_left_out_of_a_prepared_storage(self, damaged: Path) -> None:
        with pytest.raises(SampleError, match=damaged.name):
            trained(**PHOTOS, strategy="preprocessed")
        run = trained(**PHOTOS, strategy="preprocessed", skip_unreadable=True)
        assert (run.values["n_train"], run.values["n_unreadable"]) == (19, 1)
        assert any(damaged.name in line for line in run.notices)


@pytest.mark.parametrize("stage", ["preparing", "staging"])
def test_stop_while_data_are_prepared_or_copied(stage: str, few_photos: Path) -> None:
    events, asked = Recorded(), threading.Event()

    def stop() -> bool:
        if events.stages and events.stages[-1][0] == stage and 0 < events.stages[-1][1] < 1:
            asked.set()
        return asked.is_set()

    slow = {"strategy": "staged", "slow_mb_s": 5.0, "slow_latency_ms": 0.0}
    values = slow if stage == "staging" else {"strategy": "preprocessed"}
    with pytest.raises(JobStopped):
        trained(stop, events=events, **(PHOTOS | values))
    assert not events.marks
    assert not list((home.home() / "locations").rglob("*.jpg"))
    assert not (home.home() / "prepared" / few_photos.name / "memmap").exists()
