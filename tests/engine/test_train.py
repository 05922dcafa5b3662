"""The training loop: budgets, warm-up, evaluation, stopping, and what the figures of a step add up to."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.engine_fixtures import SMALL, Recorded, made_once, small_digits, ticking, trained
from vitprof.analysis.timing.steady import steady_state
from vitprof.config.models import MODELS
from vitprof.config.parts import LOADERS
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets import on_disk
from vitprof.datasets.mnist import read_split
from vitprof.engine import trainer
from vitprof.engine.loaders.batches import BatchReader
from vitprof.engine.loaders.contract import epoch_order
from vitprof.engine.trainer import ViT
from vitprof.engine.transforms import ToInput
from vitprof.errors import DeviceError
from vitprof.measure import core_use, stage_look
from vitprof.measure.stage_look import begin_look

pytestmark = pytest.mark.usefixtures("shared_home")
PREPARED = ["startup", "prepare", "prepare", "startup"]
BATCHES = 19  # of 32 in 600 samples; the last has 24


LOADED = list(
    {
        (plan.loader, plan.location): s
        for s, plan in reversed(STRATEGIES.items())
        if not LOADERS[plan.loader].decodes
    }.values()
)
"""A strategy for each loader and each location that digits can have; tests/engine/test_contract.py has all others."""


def of(strategy: str) -> dict[str, Any]:
    """Settings under which all strategies see the samples in the same order, and none is slow on purpose."""
    plan, info = STRATEGIES[strategy], SMALL
    takes = plan.knobs(plan.combination(info), info)
    wanted = {"shuffle": "full", "slow_mb_s": 5000.0, "slow_latency_ms": 0.0}
    return {"strategy": strategy} | {name: value for name, value in wanted.items() if name in takes}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Recorded]]:
    """20 steps, so one epoch and the start of another, of each strategy, each run once."""
    with small_digits(made_once(tmp_path_factory, "small-digits")):
        yield functools.cache(lambda strategy: trained(steps=20, evaluate=False, **of(strategy)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the same training, written down without any of vitprof's engine."""
    torch.manual_seed(42)
    with small_digits(made_once(tmp_path_factory, "small-digits")):
        images, labels = (torch.from_numpy(a) for a in read_split(on_disk.prepare("digits"), True))
        model = ViT(MODELS["tiny"], image_size=28, channels=1, classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    batches = [chosen for epoch in (0, 1) for chosen in epoch_order(600, 42, epoch).split(32)]
    losses = []
    for chosen in batches[:20]:
        x = (images[chosen].unsqueeze(1).float() / 255 - 0.1307) / 0.3081
        loss = F.cross_entropy(model(x), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("strategy", LOADED)
def test_what_a_run_of_20_steps_reports(
    runs: Callable[[str], Recorded], plain: list[float], strategy: str
) -> None:
    run = runs(strategy)
    assert run["loss"] == pytest.approx(plain, abs=1e-4)
    assert run.completed is True
    assert run["step"].tolist() == list(range(20))
    assert run["epoch"].tolist() == [0] * BATCHES + [1]
    assert run["samples"].tolist() == [32] * 18 + [24, 32]
    assert run["warmup"].tolist() == [1] * 5 + [0] * 15
    assert (run["rank"] == 0).all()
    assert run.values["n_train"] == 600
    assert run.values["cpu_samples"] == run["samples"][5:].sum()
    assert run.values["cpu_s"] > 0
    staged = ["stage"] if STRATEGIES[strategy].location != "disk" else []
    assert [name for name, _, _ in run.phases] == [
        "startup",
        "prepare",
        *staged,
        "prepare",
        "startup",
        "shutdown",
    ]
    assert run.values["storage_bytes"] > 0
    assert (run.environments[0]["device"], run.environments[0]["torch_threads"]) == ("cpu", 1)
    # On the CPU the steps fill the time.
    assert run["step_s"] == pytest.approx(run["gap_s"] + run["compute_s"], abs=1e-9)
    end = run["compute_start_s"] + run["compute_s"]
    began = end - run["step_s"]
    after = (
        np.arange(1, 20) != 5
    )  # after warm-up the CPU time is asked for: between steps 4 and 5 is a pause
    assert began[1:][after] == pytest.approx(end[:-1][after], abs=1e-9)
    assert began[5] > end[4] + 1e-6  # and no step is charged with it
    assert (run["t_start_s"] >= began).all()
    got = run["t_start_s"] + run["data_wait_s"]
    assert (run["compute_start_s"] - run["h2d_s"] >= got - 1e-9).all()
    assert run["exposed_wait_s"] == pytest.approx(
        run["data_wait_s"], abs=1e-9
    )  # nothing hides a wait on the CPU
    assert (run["data_wait_s"] >= 0).all()
    assert (run["compute_s"] > 0).all()
    assert (run["read_s"] >= 0).all()
    assert (run["made_start_s"] <= run["made_end_s"]).all()
    assert (run["made_end_s"] <= got).all()
    assert (run["hand_over_s"] >= 0).all()


class TestBudget:
    @pytest.mark.parametrize(
        ("config", "epochs"),
        [
            ({"epochs": 2, "batch_size": 300}, [0, 0, 1, 1]),
            ({"steps": 3}, [0, 0, 0]),
            ({"steps": 2, "batch_size": 300}, [0, 0]),  # as many as an epoch has
        ],
        ids=str,
    )
    def test_epochs_and_steps(self, config: dict[str, int], epochs: list[int]) -> None:
        run = trained(strategy="memory", evaluate=False, **config)
        assert (run.completed, run["epoch"].tolist()) == (True, epochs)
        assert run["step"].tolist() == list(range(len(epochs)))
        assert "test_accuracy" not in run.values
        assert "evaluate" not in [name for name, _, _ in run.phases]

    def test_seconds_of_training(self) -> None:
        run = trained(
            strategy="memory", seconds=0.1, evaluate=False, batch_size=150, clock=ticking()
        )
        began = run["t_start_s"][0]
        ends = run["compute_start_s"] + run["compute_s"] - began
        assert run.completed is True
        assert run["epoch"].max() >= 1
        # The clock goes on by 1 ms with each reading: two lie between the beginning and the first
        # step, two between the end of a step and the look at the time.
        looked_s = ends + 4e-3
        rounding_s = 1e-9
        assert looked_s[-2] + rounding_s < 0.1 <= looked_s[-1] + rounding_s
        assert run["step_s"].sum() <= 0.11

    def test_a_slow_setting_makes_its_least_steps_and_not_for_ever(self) -> None:
        asked: dict[str, Any] = {
            "strategy": "memory",
            "evaluate": False,
            "batch_size": 60,
            "warmup_steps": 1,
        }
        run = trained(
            **asked, seconds=0.05, least_steps=6, clock=ticking(5e-3)
        )  # a step takes about 40 ms
        assert steady_state(run.steps).sum() == 6
        run = trained(**asked, seconds=0.05, least_steps=100, clock=ticking(5e-3))
        assert 0.45 <= run["t_start_s"][-1] - run["t_start_s"][0] <= 0.6, "ten times its seconds"
        quick = trained(**asked, seconds=0.1, least_steps=1, clock=ticking(1e-3))
        assert quick["t_start_s"][-1] - quick["t_start_s"][0] > 0.08, (
            "what has its steps goes on for its seconds"
        )


@pytest.mark.parametrize("warmup", [0, 2, 99])
def test_warmup(warmup: int) -> None:
    run = trained(strategy="memory", steps=4, evaluate=False, warmup_steps=warmup)
    assert run["warmup"].tolist() == [float(step < warmup) for step in range(4)]
    # CPU time is counted over the steady steps; the first step is none of them even without warm-up
    assert run.values["cpu_samples"] == 32 * max(0, 4 - max(warmup, 1))


class TestEvaluation:
    def test_facts_are_those_of_the_test_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        models = []
        build = trainer.ViT
        monkeypatch.setattr(
            trainer, "ViT", lambda *a, **k: models.append(build(*a, **k)) or models[0]
        )
        run = trained(strategy="memory", epochs=1)
        images, labels = (torch.from_numpy(a) for a in read_split(on_disk.prepare("digits"), False))
        with torch.no_grad():
            logits = models[0](
                ToInput(SMALL, "uint8", 28, torch.device("cpu"))(images.unsqueeze(1))
            )
        assert run.values["test_accuracy"] == (logits.argmax(1) == labels).sum().item() / 100
        assert run.values["test_loss"] == pytest.approx(
            F.cross_entropy(logits, labels).item(), abs=1e-5
        )

    @pytest.mark.parametrize(("budget", "times"), [({"epochs": 2}, 2), ({"steps": 5}, 1)])
    def test_after_each_epoch_or_at_the_end_beside_no_step(
        self, budget: dict[str, int], times: int
    ) -> None:
        run = trained(strategy="memory", batch_size=300, **budget)
        assert [name for name, _, _ in run.phases] == [*PREPARED, *["evaluate"] * times, "shutdown"]
        end = run["compute_start_s"] + run["compute_s"]
        stretches = [(a, b) for _, a, b in run.phases] + list(
            zip(end - run["step_s"], end, strict=True)
        )
        stretches.sort()
        assert all(b <= c + 1e-9 for (_, b), (c, _) in itertools.pairwise(stretches))

    def test_training_goes_on_as_if_there_had_been_none(self) -> None:
        job = {"strategy": "memory", "epochs": 2, "batch_size": 200}
        without = trained(**job, evaluate=False)["loss"]
        assert trained(**job)["loss"] == pytest.approx(without, abs=1e-6)


def test_what_stages_use_of_the_cores_is_a_fact_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the batches after the warm-up; none where all are short."""
    if begin_look(1, 1) is None:
        pytest.skip("this system does not say what a thread waits for")
    monkeypatch.setattr(core_use, "EVERY", 1)
    settings = {"strategy": "per-sample", "steps": 8, "warmup_steps": 5, "evaluate": False}
    monkeypatch.setattr(stage_look, "LEAST_BATCH_S", math.inf)
    assert "making" not in trained(**settings).values
    monkeypatch.setattr(stage_look, "LEAST_BATCH_S", 0.0)
    making = trained(**settings).values["making"]
    assert set(making) == {"stages", "looked_batches", "looking_s"}
    assert making["looked_batches"] == 3
    assert set(making["stages"]) == {"decode", "transform", "collate"}
    assert all(use["took_s"] > 0 for use in making["stages"].values())


def test_loader_only() -> None:
    run = trained(strategy="memory", epochs=1, loader_only=True)
    assert run.completed is True
    assert run["samples"].sum() == 600
    assert np.isnan(run["loss"]).all()
    assert (run["compute_s"] == 0).all()
    assert run["gap_s"] == pytest.approx(run["step_s"])
    assert "test_accuracy" not in run.values
    assert "evaluate" not in [name for name, _, _ in run.phases]


class TestStop:
    @pytest.mark.parametrize("strategy", ["memory", "workers"])
    def test_in_mid_epoch(self, strategy: str) -> None:
        asked = itertools.count()
        run = trained(stop=lambda: next(asked) >= 6, strategy=strategy, epochs=3)
        assert run.completed is False
        assert 0 < len(run.marks) < BATCHES
        assert run["step"].tolist() == list(range(len(run.marks)))
        assert run.phases[-1][0] == "shutdown"
        assert {"n_train", "cpu_s"} <= run.values.keys()
        assert "test_accuracy" not in run.values

    def test_during_evaluation(self) -> None:
        run = Recorded()

        def evaluating() -> bool:
            return run.stages[-1][0] == "evaluating"

        trained(evaluating, events=run, strategy="memory", epochs=1, batch_size=100)
        assert (run.completed, len(run.marks)) == (False, 6)
        assert "test_accuracy" not in run.values

    def test_when_the_budget_is_spent_it_is_done(self) -> None:
        run = Recorded()
        trained(lambda: len(run.marks) == 2, events=run, strategy="memory", steps=2, evaluate=False)
        assert run.completed is True


class TestFailure:
    def test_of_a_batch_keeps_the_steps_and_closes_the_loader(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed: list[bool] = []

        def failing(self: BatchReader, epoch: int) -> Iterator[Any]:
            yield from itertools.islice(whole(self, epoch), 3)
            raise OSError(5, "the disk went away")

        whole = BatchReader.epoch
        monkeypatch.setattr(BatchReader, "epoch", failing)
        monkeypatch.setattr(BatchReader, "close", lambda self: closed.append(True))
        run = Recorded()
        with pytest.raises(OSError, match="the disk went away"):
            trained(events=run, strategy="memory", epochs=1)
        assert (run["step"].tolist(), closed) == ([0, 1, 2], [True, True])
        assert run.phases[-1][0] == "shutdown"

    def test_of_a_gpu_of_another_kind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """PyTorch for AMD's GPUs calls them cuda; the marks and the figures would be another library's."""
        monkeypatch.setattr(torch.version, "hip", "6.2")
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Radeon")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        amd = r"an AMD GPU \(Radeon, ROCm 6.2\), which vitprof's own jobs do not use yet"
        with pytest.raises(
            DeviceError, match=rf"^device cuda:0: PyTorch .*: it has {amd}; choose device cpu, or"
        ):
            trained(strategy="memory", device="cuda:0")


def test_images_are_resized_where_the_model_wants_it() -> None:
    run = trained(strategy="memory", steps=2, image_size=35, batch_size=32)
    assert np.isfinite(run["loss"]).all()
    assert math.isfinite(run.values["test_loss"])


def test_a_compiled_model_trains_the_same(
    runs: Callable[[str], Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through Dynamo only: the default backend compiles for a minute here."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    run = trained(strategy="memory", steps=3, evaluate=False, compile=True)
    assert run["loss"] == pytest.approx(runs("memory")["loss"][:3], abs=1e-4)


def test_stages_tell_how_far_it_is() -> None:
    run = trained(strategy="memory", epochs=2, batch_size=100, clock=ticking(0.05))
    training = [fraction for name, fraction, _ in run.stages if name == "training"]
    assert training[0] == 0
    assert training == sorted(training)
    assert training[-1] == 1
    evaluating = [fraction for name, fraction, _ in run.stages if name == "evaluating"]
    assert (evaluating, run.stages[-1][0]) == ([0, 0], "finishing")
