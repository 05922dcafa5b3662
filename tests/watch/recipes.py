"""Training as frameworks and people write it where PyTorch's own `DataLoader.__iter__` and optimizers are not used, or
where a framework drives the loop. Each has a timer of its own, and returns its steps and the share of them that it
waited; a framework is imported where it is used. `tests.watch.frameworks` looks closer at those that are installed
everywhere."""

import itertools
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

import vitprof
from tests.watch import quiet_lightning, quiet_transformers

BATCH, N_SAMPLES, EPOCHS, SKIPPED = 4, 80, 2, 10
N_STEPS = EPOCHS * N_SAMPLES // BATCH
READ_S, WORK_S = 0.002, 0.008
FETCH_AHEAD = ("transformers", "accelerate", "timm")
"""Each epoch's first step has two batches, and its last none."""
FRAMEWORKS = (
    "lightning",
    *FETCH_AHEAD,
    "fastai",
    "keras",
    "ultralytics",
    "skorch",
    "ignite",
    "monai",
    "torch_geometric",
    "webdataset",
    "litdata",
    "streaming",
    "hydra",
    "torchdata",
    "spdl",
)
"""Modules that a recipe `by_` each of these needs."""
BY_HAND = ("by_hand", "accumulating", "own_iterator", "fake_loader", "attacked_validation")
"""Recipes that need none."""
warnings.simplefilter("ignore")


class Samples(Dataset[tuple[Tensor, int]]):
    def __init__(self, n: int = N_SAMPLES) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index >= self.n:
            raise IndexError
        time.sleep(READ_S)
        return torch.full((4,), float(index)), torch.tensor(index % 3)


class Dictionaries(Samples):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x, "y": y}


class Timer:
    """Times a loop: `ask` as it requests a batch, `got` as it has it; the next `ask` ends the step."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self.steps_s: list[float] = []
        self._asked = self._got = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether a step has its batch, and is not over."""
        return self._got > self._asked

    def ask(self, *, ends: bool = True) -> None:
        now = time.perf_counter()
        if ends:
            self.waits_s.append(self._got - self._asked)
            self.steps_s.append(now - self._asked)
        self._asked = now

    def got(self) -> None:
        self._got = time.perf_counter()

    def told(self, n: int | None = None) -> str:
        counted = [
            i for i in range(SKIPPED, len(self.steps_s)) if i != N_STEPS // 2
        ]  # what passes as an epoch begins
        share = sum(self.waits_s[i] for i in counted) / sum(self.steps_s[i] for i in counted)
        return json.dumps({"steps": len(self.steps_s) if n is None else n, "wait": share})


class Work(torch.nn.Linear):
    """A model whose steps take a while, to train as to check."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(WORK_S)
        return super().forward(x)


def change(model: torch.nn.Module) -> None:
    """Steps without any optimizer."""
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.001 * parameter.grad)
            parameter.grad = None


def loop(batches: Any, step: Any, timer: Timer) -> None:
    timer.ask(ends=False)
    for _ in range(EPOCHS):
        for x, y in batches:
            timer.got()
            step(x, y)
            timer.ask()


def by_hand(batches: Any = None, *, every: int = 1) -> str:
    """Parameters change after `every` so many batches."""
    model, timer, numbers = Work(), Timer(), itertools.count(1)

    def step(x: Tensor, y: Tensor) -> None:
        cross_entropy(model(x), y).backward()
        if next(numbers) % every == 0:
            change(model)

    loop(DataLoader(Samples(), BATCH) if batches is None else batches, step, timer)
    return timer.told()


def by_optimizer(batches: Any) -> str:
    model, timer = Work(), Timer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    loop(batches, step, timer)
    return timer.told()


def accumulating() -> str:
    return by_hand(every=5)


class Infinite(DataLoader[Any]):
    """As the one of ultralytics: one iterator, which is not made by `DataLoader.__iter__`."""

    def __init__(self) -> None:
        super().__init__(Samples(), BATCH)
        self.iterator: Any = None

    def __iter__(self) -> Any:
        iterator: Any = self._get_iterator()
        return (next(iterator) for _ in range(len(self)))


def own_iterator() -> str:
    return by_optimizer(Infinite())


class Fake:
    """As the one of fastai: it has what an iterator needs and no more, and stands in for another loader."""

    _IterableDataset_len_called = generator = multiprocessing_context = None
    _auto_collation, drop_last, pin_memory, pin_memory_device = True, False, False, ""
    _dataset_kind, num_workers, timeout, persistent_workers = 0, 0, 0, False

    def __init__(self) -> None:
        self.dataset, self._index_sampler = (
            Samples(),
            [range(i, i + BATCH) for i in range(0, N_SAMPLES, BATCH)],
        )

    def collate_fn(self, samples: Any) -> Any:
        return torch.utils.data.default_collate(samples)


def fake_loader() -> str:
    class Loader:
        fake: Any = Fake()

        def __iter__(self) -> Any:
            yield from _SingleProcessDataLoaderIter(self.fake)

    return by_hand(Loader())


def attacked_validation() -> str:
    """Gradients of a validation's inputs, of parameters that don't change, and of a peek; then another one trains."""
    model = Work()
    validation = DataLoader(Samples(32), BATCH)
    for x, y in validation:
        x.requires_grad_()
        cross_entropy(model(x), y).backward()
        with torch.no_grad():
            x.add_(0.01 * x.grad.sign())
    x, y = next(iter(validation))
    for _ in range(4):
        cross_entropy(model(x), y).backward()
    model.zero_grad()
    return by_hand(DataLoader(Samples(), BATCH))


def only_validation() -> None:
    """Gradients are looked at, and nothing trains."""
    model = Work()
    loop(DataLoader(Samples(), BATCH), lambda x, y: cross_entropy(model(x), y).backward(), Timer())


def by_lightning() -> str:
    import lightning
    from lightning.pytorch.profilers import Profiler

    timer = Timer()

    class Timing(Profiler):
        """Lightning calls its profiler right around `next()`. `on_train_batch_start` comes after the
        copy of the batch and other hooks, 0.4 ms later."""

        def start(self, action_name: str) -> None:
            if action_name == "[_TrainingEpochLoop].train_dataloader_next":
                timer.ask(ends=timer.has_begun)

        def stop(self, action_name: str) -> None:
            if action_name == "[_TrainingEpochLoop].train_dataloader_next":
                timer.got()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Work()

        def training_step(self, batch: Any, _: int) -> Tensor:
            x, y = batch
            return cross_entropy(self.model(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.001)

        def on_train_epoch_end(self) -> None:
            timer.ask()

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            **quiet_lightning(folder), max_epochs=EPOCHS, accelerator="cpu", profiler=Timing()
        )
        trainer.fit(Module(), DataLoader(Samples(), BATCH))
    return timer.told()


def by_transformers() -> str:
    import transformers

    timer = Timer()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Work()

        def forward(self, x: Tensor, y: Tensor, **_: Any) -> dict[str, Tensor]:
            return {"loss": cross_entropy(self.model(x), y)}

    class Timing(transformers.TrainerCallback):
        def on_epoch_begin(self, *_: Any, **more: Any) -> None:
            timer.ask(ends=False)

        def on_step_begin(self, *_: Any, **more: Any) -> None:
            timer.got()

        def on_step_end(self, *_: Any, **more: Any) -> None:
            timer.ask()

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            **quiet_transformers(folder),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            use_cpu=True,
        )
        trainer = transformers.Trainer(
            Model(), arguments, train_dataset=Dictionaries(), callbacks=[Timing()]
        )
        trainer.train()
    return timer.told()


def by_accelerate() -> str:
    import accelerate

    timer = Timer()
    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = Work()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.001)
    batches: Any = DataLoader(Samples(), BATCH)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(x), y))
        optimizer.step()

    loop(batches, step, timer)
    return timer.told()


def by_timm() -> str:
    from timm.data.loader import PrefetchLoader

    class Images(Samples):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return x.view(1, 2, 2), y

    batches = PrefetchLoader(
        DataLoader(Images(), BATCH),
        mean=(0.0,),
        std=(1.0,),
        channels=1,
        device=torch.device("cpu"),
    )
    return by_optimizer(Named(batches, lambda batch: (batch[0].flatten(1), batch[1])))


def by_fastai() -> str:
    import fastai.callback.progress  # noqa: F401  # adds `no_bar`
    from fastai.callback.core import Callback
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader as Loader
    from fastai.learner import Learner
    from fastai.optimizer import SGD

    timer = Timer()

    class Timing(Callback):  # type: ignore[misc]
        def before_train(self) -> None:
            timer.ask(ends=False)

        def after_batch(self) -> None:
            if self.training:
                timer.ask()

    def got(batch: Any) -> Any:  # batch transforms and the copy to the device come after the wait
        timer.got()
        return batch

    loaders = DataLoaders(
        Loader(Samples(), bs=BATCH, after_batch=got, num_workers=0),
        Loader(Samples(), bs=BATCH, num_workers=0),
    )
    learner = Learner(
        loaders, Work(), loss_func=torch.nn.CrossEntropyLoss(), cbs=[Timing()], opt_func=SGD
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit(EPOCHS)
    return timer.told()


def by_keras() -> str:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    timer = Timer()

    class Timing(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, *_: Any, **more: Any) -> None:
            timer.ask(ends=False)

        def on_train_batch_begin(self, *_: Any, **more: Any) -> None:
            timer.got()

        def on_train_batch_end(self, *_: Any, **more: Any) -> None:
            timer.ask()

    class Sleep(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            time.sleep(WORK_S)
            return x

    model = keras.Sequential([keras.Input((4,)), Sleep(), keras.layers.Dense(3)])
    model.compile(
        optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    train, validation = (DataLoader(Samples(), BATCH) for _ in range(2))
    model.fit(train, epochs=EPOCHS, verbose=0, callbacks=[Timing()], validation_data=validation)
    return timer.told()


def by_skorch() -> str:
    import skorch

    timer = Timer()

    class Net(skorch.NeuralNet):  # type: ignore[misc]
        def on_epoch_begin(self, *args: Any, **more: Any) -> None:
            super().on_epoch_begin(*args, **more)
            timer.ask(ends=False)

        def on_batch_begin(self, *args: Any, training: bool = False, **more: Any) -> None:
            if training:
                timer.got()
            super().on_batch_begin(*args, training=training, **more)

        def on_batch_end(self, *args: Any, training: bool = False, **more: Any) -> None:
            super().on_batch_end(*args, training=training, **more)
            if training:
                timer.ask()

    net = Net(
        Work,
        torch.nn.CrossEntropyLoss,
        max_epochs=EPOCHS,
        batch_size=BATCH,
        train_split=None,
        verbose=0,
    )
    net.fit(Samples(), None)
    return timer.told()


def by_ignite() -> str:
    from ignite.engine import Events, create_supervised_trainer

    timer, model = Timer(), Work()
    trainer = create_supervised_trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.001), cross_entropy
    )
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: timer.ask(ends=timer.has_begun))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, timer.got)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: timer.ask(ends=timer.has_begun))
    trainer.run(DataLoader(Samples(), BATCH), max_epochs=EPOCHS)
    return timer.told()


class Named:
    """A loader whose batches name what is in them."""

    def __init__(self, loader: Any, pair: Any) -> None:
        self.loader, self.pair = loader, pair

    def __iter__(self) -> Any:
        return map(self.pair, self.loader)


def by_monai() -> str:
    from monai.data import DataLoader as Loader

    return by_optimizer(
        Named(Loader(Dictionaries(), batch_size=BATCH), lambda batch: (batch["x"], batch["y"]))
    )


def by_torch_geometric() -> str:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as Loader

    class Graphs(Samples):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return Data(x=x[None], y=torch.tensor([y]))

    return by_optimizer(
        Named(Loader(Graphs(), batch_size=BATCH), lambda graphs: (graphs.x, graphs.y))
    )


def by_webdataset() -> str:
    import io
    import tarfile

    import webdataset

    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(f"{folder}/all.tar", "w") as tar:
            for i in range(N_SAMPLES):
                info = tarfile.TarInfo(f"{i:04}.cls")
                info.size = len(text := str(i).encode())
                tar.addfile(info, io.BytesIO(text))
        pairs = (
            webdataset.WebDataset(f"{folder}/all.tar", shardshuffle=False).decode().to_tuple("cls")
        )
        batches = pairs.map(lambda sample: Samples()[int(sample[0])]).batched(BATCH)
        return by_optimizer(webdataset.WebLoader(batches, batch_size=None, num_workers=0))


def by_torchdata() -> str:
    from torchdata import nodes

    samples = nodes.Mapper(nodes.IterableWrapper(range(N_SAMPLES)), Samples().__getitem__)
    batches = nodes.Mapper(nodes.Batcher(samples, BATCH), torch.utils.data.default_collate)
    return by_optimizer(vitprof.watch(nodes.Loader(batches)))


def by_spdl() -> str:
    from spdl.pipeline import PipelineBuilder

    class Batches:
        def __iter__(self) -> Any:
            builder = (
                PipelineBuilder()
                .add_source(range(N_SAMPLES))
                .pipe(Samples().__getitem__)
                .aggregate(BATCH)
            )
            pipeline = (
                builder.pipe(torch.utils.data.default_collate).add_sink(2).build(num_threads=1)
            )
            with pipeline.auto_stop():
                yield from pipeline

    return by_optimizer(vitprof.watch(Batches()))


def samples_of(kind: Any) -> Any:
    """A data set of a library's, of the numbers of samples."""

    class Streamed(kind):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            return Samples()[int(super().__getitem__(index)["i"])]

    return Streamed


def by_litdata() -> str:
    import litdata

    with tempfile.TemporaryDirectory() as folder:
        writer = litdata.streaming.writer.BinaryWriter(folder, chunk_size=16)
        for i in range(N_SAMPLES):
            writer.add_item(i, {"i": i})
        writer.done()
        writer.merge()

        streamed = samples_of(litdata.StreamingDataset)(folder)
        return by_optimizer(litdata.StreamingDataLoader(streamed, batch_size=BATCH, num_workers=0))


def by_streaming() -> str:
    import streaming

    with tempfile.TemporaryDirectory() as folder:
        with streaming.MDSWriter(out=folder, columns={"i": "int"}) as writer:
            for i in range(N_SAMPLES):
                writer.write({"i": i})

        return by_optimizer(
            DataLoader(
                samples_of(streaming.StreamingDataset)(local=folder, batch_size=BATCH), BATCH
            )
        )


def by_ray(folder: str) -> None:
    """Writes what it returns to `told` in `folder`: Ray Train trains in a process of its own."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def train() -> None:
        Path(folder, "told").write_text(
            by_optimizer(DataLoader(Samples(), BATCH)), encoding="utf-8"
        )

    ray.init(include_dashboard=False, num_cpus=2, logging_level="error", log_to_driver=False)
    TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=f"{folder}/ray"),
    ).fit()


def by_ultralytics() -> str:
    from ultralytics.data.build import InfiniteDataLoader

    return by_optimizer(InfiniteDataLoader(dataset=Samples(), batch_size=BATCH))


def by_hydra() -> str:
    import hydra

    told = []
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["train.py", f"hydra.run.dir={folder}"]
        hydra.main(version_base=None, config_path=None)(lambda _: told.append(by_hand()))()
    return told[0]
