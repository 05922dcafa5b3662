"""The training of `tests.watch.scripts` as people write it with a framework. Nothing in it knows of vitprof, unless it
is asked for a `name`: then the script watches itself. Each returns the losses to the bit, and how long each `next()`
took by its own or its framework's clock."""

import json
import logging
import os
import tempfile
import time
import warnings
from typing import Any

import accelerate
import lightning
import timm.data.loader
import torch
import transformers
from lightning.pytorch.profilers import SimpleProfiler
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import vitprof
from tests.watch import quiet_lightning, quiet_transformers
from tests.watch.scripts import BATCH, BODY_S, Samples, collate, linear

ACCUMULATE = 2
warnings.simplefilter("ignore")
for name in ("lightning.pytorch", "transformers", "accelerate"):
    logging.getLogger(name).setLevel(logging.ERROR)


def _loader(*, workers: int, **more: Any) -> DataLoader[Any]:
    return DataLoader(
        Samples(), batch_size=BATCH, shuffle=True, num_workers=workers, collate_fn=collate, **more
    )


def _told(losses: list[str], waits_s: list[float]) -> str:
    return json.dumps({"losses": losses, "waits_s": waits_s})


class _Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(4, 3)
        self.losses: list[str] = []

    def training_step(self, batch: Any, _: int) -> Tensor:
        time.sleep(BODY_S)
        loss = cross_entropy(self.model(batch["x"]), batch["y"])
        self.losses.append(loss.item().hex())
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.model(batch["x"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.001)


class _Unsized(torch.utils.data.IterableDataset[Any]):
    """Samples of which nobody knows how many there are."""

    def __iter__(self) -> Any:
        samples = Samples()
        return (samples[i] for i in range(len(samples)))


def by_lightning(*, workers: int, name: str = "", sized: bool = True) -> str:
    torch.manual_seed(0)
    module, profiler = _Module(), SimpleProfiler()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            **quiet_lightning(folder),
            max_epochs=2,
            accelerator="cpu",
            profiler=profiler,
            limit_val_batches=1,
            callbacks=[vitprof.LightningCallback(name=name)] if name else [],
        )
        unsized: Any = DataLoader(_Unsized(), batch_size=BATCH, collate_fn=collate)
        trainer.fit(module, _loader(workers=workers) if sized else unsized, _loader(workers=0))
    return _told(
        module.losses, profiler.recorded_durations["[_TrainingEpochLoop].train_dataloader_next"]
    )


def example(*, source: str) -> str:
    """Runs an example of the documents. Returns how many losses there were."""
    module = _Module()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # Lightning writes its log there
        exec(
            source,
            {
                "lightning": lightning,
                "vitprof": vitprof,
                "module": module,
                "loader": _loader(workers=0),
            },
        )
    return str(len(module.losses))


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(4, 3)
        self.losses: list[str] = []

    def forward(self, x: Tensor, y: Tensor, **_: Any) -> dict[str, Tensor]:
        time.sleep(BODY_S)
        loss = cross_entropy(self.model(x), y)
        if self.training:
            self.losses.append(loss.item().hex())
        return {"loss": loss, "logits": x}


def _for_the_trainer(samples: Any) -> dict[str, Any]:
    batch = collate(samples)
    return {"x": batch["x"], "y": batch["y"]}


def by_transformers(*, workers: int, name: str = "") -> str:
    """Accumulates gradients: the trainer takes all batches of a step of its optimizer before the first is used."""
    torch.manual_seed(0)
    model = _Model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            **quiet_transformers(folder),
            num_train_epochs=2,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=ACCUMULATE,
            dataloader_num_workers=workers,
            use_cpu=True,
            eval_strategy="epoch",
            per_device_eval_batch_size=BATCH,
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=Samples(),
            eval_dataset=torch.utils.data.Subset(Samples(), range(BATCH)),
            data_collator=_for_the_trainer,
            callbacks=[vitprof.TrainerCallback(name=name)] if name else [],
        )
        trainer.train()
    return _told(model.losses, [])


def by_accelerate(*, workers: int, name: str = "", first: bool = False) -> str:
    """Its loader takes the next batch before it gives the one before. Watched when prepared, or before (`first`)."""
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = linear()
    batches: Any = _loader(workers=workers)
    if name and first:
        batches = vitprof.watch(batches, name=name)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    if name and not first:
        batches = vitprof.watch(batches, name=name)
    return _train_by_hand(model, optimizer, batches, accelerator.backward)


def by_timm(*, workers: int) -> str:
    """Its loader takes the next batch, and copies it, before it gives the one before."""
    model, optimizer = linear()

    def pair(samples: Any) -> tuple[Tensor, Tensor]:
        batch = collate(samples)
        return batch["x"].view(-1, 1, 2, 2), batch["y"]

    plain = DataLoader(
        Samples(), batch_size=BATCH, shuffle=True, num_workers=workers, collate_fn=pair
    )
    cpu = torch.device("cpu")
    batches = timm.data.loader.PrefetchLoader(
        plain, mean=(0.0,), std=(1.0,), channels=1, device=cpu
    )

    class Named:
        def __iter__(self) -> Any:
            return ({"x": x.flatten(1), "y": y} for x, y in batches)

    return _train_by_hand(model, optimizer, Named(), Tensor.backward)


def by_torchdata(*, workers: int) -> str:
    """Its DataLoader begins an iteration in its own way."""
    model, optimizer = linear()
    batches = StatefulDataLoader(
        Samples(), batch_size=BATCH, shuffle=True, num_workers=workers, collate_fn=collate
    )
    return _train_by_hand(model, optimizer, batches, Tensor.backward)


def _train_by_hand(model: Any, optimizer: Any, batches: Any, backward: Any) -> str:
    losses, waits_s = [], []
    for _ in range(2):
        asked = time.perf_counter()
        for batch in batches:
            waits_s.append(time.perf_counter() - asked)
            time.sleep(BODY_S)
            loss = cross_entropy(model(batch["x"]), batch["y"])
            backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
            asked = time.perf_counter()
    return _told(losses, waits_s)
