"""Writes the script: checks the config, joins the fragments, and adds where it comes from and what to change."""

from __future__ import annotations

import re
import textwrap

from vitprof.config import RunConfig
from vitprof.config.accelerators import is_simulated
from vitprof.config.catalog import dataset_info
from vitprof.config.parts import LOADERS, STORAGES, TRANSFERS
from vitprof.config.resolve import resolve
from vitprof.config.strategies import strategy
from vitprof.errors import ConfigError
from vitprof.export.code.assemble import fragment, module
from vitprof.export.code.draft import AUTOCAST, Draft
from vitprof.export.code.loaders import BLOCK, add_loader
from vitprof.export.code.storages import add_storage
from vitprof.export.code.transfers import add_transfer

WIDTH = 88
"""Line width of a script: the default of ruff and Black."""


def script(config: RunConfig, found: str = "", run_id: int | None = None) -> str:
    """Returns a Python script that loads the user's own data as the strategy of `config` does, and trains on them.

    It needs PyTorch and what the strategy needs, nothing of vitprof. `python script.py DATA` trains a stand-in for the
    user's model, `python script.py --demo` does so on a little random data. `found` is what was measured, such as
    "1,234 samples/s in steady state", and `run_id` the run in which it was measured; the script's docstring has both.
    Raises `ConfigError` for a config that cannot run, or for which there is no script.
    """
    config = resolve(config)
    _refuse(config)
    draft = Draft(config, dataset_info(config.dataset, config.n_images))
    add_storage(draft)
    add_loader(draft)
    add_transfer(draft)
    draft.names += ["make_loader", "demo_folder" if draft.folder else "demo_npz", "main"]
    draft.blanks |= _last_blanks(draft)
    pieces = [fragment(name, draft.blanks) for name in draft.names]
    return module(_head(draft, found, run_id), _constants(draft, "\n".join(pieces)), pieces)


def _refuse(config: RunConfig) -> None:
    """Raises `ConfigError` for what only makes sense while measuring, or does not fit into a short script."""
    if config.replay or config.inject:
        field = "replay" if config.replay else "inject"
        raise ConfigError(field, getattr(config, field), "there is no script for what only measures; leave it out")


SCALED_UPDATE = """scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()"""


def _compile(config: RunConfig) -> str:
    if not config.compile:
        return ""
    return f"model = torch.compile(model{f', mode={config.compile_mode!r}' if config.compile_mode else ''})"


def _last_blanks(draft: Draft) -> dict[str, str]:
    config, info = draft.config, draft.info
    if config.precision in AUTOCAST:
        forward = (
            f"with torch.autocast(device.type, {AUTOCAST[config.precision]}):\n    logits = model(images)\n"
            "loss = F.cross_entropy(logits.float(), labels)"
        )
    else:
        forward = "loss = F.cross_entropy(model(images), labels)"
    grey, scaled = info.channels == 1, config.precision == "fp16"
    jpeg = info.kind == "jpeg"
    return {
        "OPENING": "\n".join(draft.opening),
        "CUDNN": "\n".join(
            line
            for line, wanted in (
                ("torch.backends.cudnn.benchmark = True", config.cudnn_benchmark),
                ('torch.set_float32_matmul_precision("high")', config.precision == "tf32"),
            )
            if wanted
        ),
        "COMPILE": _compile(config),
        "FUSED": ", fused=True" if config.fused_optimizer else "",
        "SCALER": "scaler = torch.amp.GradScaler(device.type)" if scaled else "",
        "UPDATE": SCALED_UPDATE if scaled else "loss.backward()\noptimizer.step()",
        "FORWARD": forward,
        "DATA_HELP": "image folder" if draft.folder else ".npz file",
        "DEMO_LOCAL": "if args.demo:\n    LOCAL = Path(folder)" if config.location == "staged" else "",
        "DEMO_CHANNELS": "" if grey else f", {info.channels}",
        "DEMO_SHAPE": "(SIZE, SIZE)" if grey else "(300, 400, 3)",
        "DEMO_SUFFIX": "jpg" if jpeg else "png",
    }


def _constants(draft: Draft, body: str) -> str:
    """Returns the settings that `body` uses."""
    config, info = draft.config, draft.info
    mean, std = repr(info.mean), repr(info.std)
    settings = [
        ("SIZE", str(info.image_size), "side of the images that are loaded, in pixels"),
        ("INPUT_SIZE", str(config.image_size), "side of your model's input"),
        ("MEAN", mean, "of your pixels in 0..1, for each channel"),
        ("STD", std, ""),
        ("CHANNELS", "len(MEAN)", ""),
        ("BATCH_SIZE", str(config.batch_size), ""),
        ("LEARNING_RATE", f"{config.lr:g}", ""),
        ("SEED", str(config.seed), ""),
        ("WORKERS", str(config.workers), "processes" if config.loader == "dataloader" else "threads"),
        ("PREFETCH", str(config.prefetch_factor), "batches kept ready" + _by_each(config)),
        ("CACHE_MB", f"{config.cache_mb or 0:g}", "memory for part of the set"),
        ("BLOCK", str(BLOCK), "neighbours that stay together when the order is shuffled"),
        ("PREPARED", "None", "a folder on a fast local disk; None: prepare beside DATA"),
        (
            "LOCAL",
            'Path(tempfile.gettempdir(), f"staged-{os.getuid()}")',
            "on the local disk",
        ),
    ]
    words = set(re.findall(r"\w+", body))
    used = [s for s in settings if s[0] in words or (s[0] == "MEAN" and "CHANNELS" in body)]
    return "\n".join(f"{name} = {value}" + (f"  # {comment}" if comment else "") for name, value, comment in used)


def _by_each(config: RunConfig) -> str:
    return ", by each worker" if config.loader == "dataloader" else ""


def _head(draft: Draft, found: str, run_id: int | None) -> str:
    config, plan = draft.config, strategy(draft.config.strategy)
    made = "Made by vitprof" + (f" from run {run_id}" if run_id is not None else "")
    storage, loader = STORAGES[config.storage or ""].title, LOADERS[config.loader or ""].title
    transfer = TRANSFERS[config.transfer or ""].title
    copies = {"ram-disk": "copied to a RAM disk", "staged": "copied to the local disk first"}
    where = copies.get(config.location or "", "")
    on = f"the data set {config.dataset}"
    measured = f"measured on {on}: {found.strip().rstrip('.')}" if found.strip() else f"with settings for {on}"
    if found.strip() and is_simulated(config.device):
        measured += f", on a simulated device ({config.device}), not on a real one"
    told = [
        f"{made}: strategy {plan.name} ({', '.join(filter(None, (storage, where, loader, transfer)))}), {measured}."
    ]
    if config.location == "slow-drive":
        told.append("vitprof throttled the drive to simulate a slow one; this script reads DATA wherever it is.")
    if config.skip_unreadable:
        told.append("vitprof skipped samples that cannot be read; this script stops at the first one.")
    data = (
        "DATA is a folder of images with a folder for each class."
        if draft.folder
        else 'DATA is a .npz file: "images" (n, height, width[, channels]) uint8 and "labels" (n,).'
    )
    told.append(f"{data} Change SIZE, MEAN and STD to those of your data, and put your own model into `train`.")
    lines = [f"Feed a training loop: {plan.title}.", ""]
    for paragraph in told:
        lines += [*textwrap.wrap(_quoted(paragraph), WIDTH), ""]
    lines += ["    python script.py DATA        python script.py --demo"]
    return '"""' + "\n".join(lines) + '\n"""'


def _quoted(text: str) -> str:
    """Returns `text` on one line, without what could end the docstring around it."""
    return " ".join(text.replace("\\", "/").replace('"""', "'''").split())
