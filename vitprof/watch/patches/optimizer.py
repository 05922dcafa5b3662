"""Each step of an optimizer of PyTorch's, by the hooks that PyTorch offers for all of them."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter
from types import ModuleType
from typing import Any

from vitprof.watch.events import NAN, Kind
from vitprof.watch.patches import Recorder, Replacements

STEPPED = int(Kind.STEPPED)


def install(recorder: Recorder, optimizers: ModuleType) -> Replacements:
    """Registers the hooks. `optimizers`: the module `torch.optim.optimizer`."""

    devices: dict[int, float] = {}
    begun: dict[int, float] = {}
    """When each optimizer that steps now began to, by its identity: one may step within another."""

    def begin(optimizer: Any, *_: Any) -> None:
        if recorder.marks is not None:
            recorder.marks.stepping()
        begun[id(optimizer)] = perf_counter()

    def record(optimizer: Any, *_: Any) -> None:
        now_s = perf_counter()
        try:
            number = recorder.number(optimizer, "optimizer")
            device = devices.get(number, 0.0)
            if not device:
                device = devices[number] = _device_of(recorder, optimizer)
                recorder.optimizers_step = True
            since_s = begun.pop(id(optimizer), NAN)
            recorder.emit((STEPPED, now_s, get_ident(), number, device, since_s, NAN))
            if recorder.on_first_work:
                recorder.work_begins()
            if recorder.notes:
                recorder.stepped(now_s)
            if recorder.limit is not None:
                recorder.limit.updated()
        except Exception as error:
            recorder.give_up(error)

    replacements = Replacements()
    replacements.keep(optimizers.register_optimizer_step_pre_hook(begin))
    replacements.keep(optimizers.register_optimizer_step_post_hook(record))
    return replacements


def _device_of(recorder: Recorder, optimizer: Any) -> float:
    """Returns the number of the device that the first of its parameters is on; NaN without any.

    The device that trains is that of the first optimizer which steps, wherever losses are. One that is
    offloaded has its parameters on the CPU, and trains elsewhere.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not (parameter.is_cpu or recorder.optimizers_step):
                recorder.begin_marks(parameter.device)
            return recorder.device(parameter.device)
    return NAN
