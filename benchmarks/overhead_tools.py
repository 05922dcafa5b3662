"""The loops that the overhead benchmark compares: a plain training loop, alone and under each tool.

    python -m benchmarks.overhead_tools TOOL RESULT.json FOLDER SCALE CASE...

Runs in an interpreter of its own (`benchmarks.overhead` starts it). Every step is timed in the same way: the loop reads
the clock once at its end. vitprof's loop makes the same reading, as `t_start_s` of the next step.
"""

import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.overhead_cases import CASES, Case, steps_of
from benchmarks.overhead_peers import Bare, tool_called
from vitprof.config import RunConfig
from vitprof.config.models import model_preset
from vitprof.config.resolve import resolve
from vitprof.datasets.catalog import dataset_info
from vitprof.engine.pipeline import open_pipeline
from vitprof.engine.trainer import ViT
from vitprof.jobs.child import run_job, send
from vitprof.measure.devices import open_device
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.measure.wire import EventBuffer, Note, read_messages


class OnDevice(nn.Module):
    """The model for a simulated device: a step takes the device's time, and computes nothing."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self._launch = device.launch

    def forward(self, images: Tensor) -> None:
        self._launch(len(images))


def plain_loop(config: RunConfig, tool: Bare) -> tuple[list[list[float]], float]:
    """Runs the job as a user would write it, over vitprof's loader. Returns the times (s) at which each step began, by
    epoch, and the last loss.

    The loader measures nothing, and a step reads nothing but the clock.
    """
    config = resolve(config)
    torch.set_num_threads(config.threads)
    clock = time.perf_counter
    device = open_device(config.device, clock)
    simulated = isinstance(device, SimulatedDevice)
    with open_pipeline(
        config, device, EventBuffer(), lambda: False, clock, evaluate=False
    ) as pipeline:
        loader, to_input = pipeline.train.loader, pipeline.train.to_input
        torch.manual_seed(config.seed)
        model: nn.Module
        if isinstance(device, SimulatedDevice):
            model = OnDevice(device)
        else:
            info, preset = dataset_info(config.dataset), model_preset(config.model)
            size = config.image_size or preset.image_size
            model = ViT(preset, image_size=size, channels=info.channels, classes=info.classes)
            optimizer = torch.optim.Adam(
                model.to(device.torch_device).parameters(), lr=config.lr or preset.lr
            )
        starts: list[list[float]] = []
        left, loss = config.steps or 0, torch.tensor(math.nan)
        with tool.job(simulated):
            step, after_step = tool.step, tool.after_step
            for epoch in itertools.count():
                stamps = [clock()]
                starts.append(stamps)
                batches = loader.epoch(epoch)
                for batch in tool.batches(batches):
                    with step(model):
                        images, labels = device.upload(batch.images), device.upload(batch.labels)
                        if simulated:
                            with tool.forward():
                                model(images)
                        else:
                            optimizer.zero_grad(set_to_none=True)
                            loss = F.cross_entropy(model(to_input(images)), labels)
                            loss.backward()
                            optimizer.step()
                    after_step()
                    left -= 1
                    stamps.append(clock())
                    if not left:
                        break
                stamps.pop()  # the end of the last step is the start of none
                batches.close()
                if not left:
                    return starts, float(loss.detach())
    raise AssertionError("unreachable")


def by_epoch(steps: dict[str, Any]) -> tuple[list[list[float]], float]:
    """Returns the same for the steps that vitprof recorded."""
    starts: dict[float, list[float]] = {}
    for epoch, start in zip(steps["epoch"], steps["t_start_s"], strict=True):
        starts.setdefault(epoch, []).append(float(start))
    return list(starts.values()), float(steps["loss"][-1])


def vitprof_loop(config: RunConfig, folder: Path) -> tuple[list[list[float]], float]:
    """Runs `train()` as a job's process does, with recorder, buffer and sending thread, here to a file. Returns the
    same.
    """
    frames, buffer, finished = folder / "frames", EventBuffer(), threading.Event()
    with frames.open("wb") as stream:
        sender = threading.Thread(target=send, args=(buffer, stream, finished))
        sender.start()
        run_job(config, buffer, threading.Event())
        finished.set()
        sender.join()
    with frames.open("rb") as stream:
        messages = list(read_messages(stream))
    end = next(m.values for m in messages if isinstance(m, Note) and m.kind == "end")
    if end["status"] != "done":
        raise SystemExit(f"vitprof: {end['status']}: {end['error']}")
    steps = [m for m in messages if not isinstance(m, Note)]
    return by_epoch(
        {
            name: [value for m in steps for value in m[name]]
            for name in ("epoch", "t_start_s", "loss")
        }
    )


def vitprof_job(config: RunConfig, folder: Path) -> tuple[list[list[float]], float]:
    """Runs the whole of vitprof: job manager, the job in its own process, telemetry at the usual 5 Hz, store. Returns
    the same.
    """
    from vitprof.jobs.manager import JobManager
    from vitprof.store import RunStore

    store = RunStore(f"sqlite:///{folder / 'runs.sqlite'}")
    manager = JobManager(store)
    try:
        run_id = manager.submit(config)
        manager.wait(run_id)
        run = store.run(run_id)
        if run.status != "done":
            raise SystemExit(f"vitprof: {run.status}: {run.error}")
        return by_epoch(dict(store.steps(run_id)))
    finally:
        manager.shutdown()
        store.close()


def run_cases(name: str, cases: Iterable[Case], folder: Path, scale: float) -> dict[str, Any]:
    """Runs each case under the tool `name`. Returns, for each, step times (s), the last loss, and the number of steps
    that the tool has recorded.
    """
    found: dict[str, Any] = {}
    loops: dict[str, Callable[[RunConfig, Path], Any]] = {
        "vitprof": vitprof_loop,
        "vitprof-app": vitprof_job,
    }
    tool = None if name in loops else tool_called(name, folder)
    for case in cases:
        if tool is None:
            starts, loss = loops[name](case.config(scale), folder)
            recorded: int | None = sum(map(len, starts))
        else:
            starts, loss = plain_loop(case.config(scale, loader_times=False), tool)
            recorded = tool.recorded()
        steps = steps_of(starts, case.first_counted)
        found[case.name] = {
            "steps_s": steps,
            "loss": None if math.isnan(loss) else loss,
            "recorded": recorded,
        }
    return found


def main(arguments: list[str]) -> None:
    name, result, folder, scale, *names = arguments
    chosen = [case for case in CASES if case.name in names]
    found = run_cases(name, chosen, Path(folder), float(scale))
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
