"""Every strategy's script, run on data whose pixels say which sample they are and where in it they lie."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cuda_stand_in import Card
from vitprof.config import RunConfig
from vitprof.config.availability import installed
from vitprof.config.catalog import DATASETS, DatasetInfo, dataset_info
from vitprof.config.parts import DECODERS, LOADERS, Combination, legal_combinations
from vitprof.config.strategies import STRATEGIES, strategy
from vitprof.errors import ConfigError, VitprofError
from vitprof.export.code import script

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")

N = 60
CLASSES = 10
BATCH = 16
STEP = 4
"""Grey levels between one sample and the next: more than JPEG and resizing change them by."""


def runs_here(name: str) -> bool:
    """Whether the packages that the strategy's loader needs are installed."""
    return all(installed(package) for package in LOADERS[strategy(name).loader].packages)


def picture(sample: int, height: int, width: int) -> np.ndarray[Any, Any]:
    """Quadrants: which sample it is, black; white, grey. Anything turned, mirrored or swapped shows."""
    image = np.empty((height, width), np.uint8)
    image[: height // 2, : width // 2], image[: height // 2, width // 2 :] = STEP * sample, 0
    image[height // 2 :, : width // 2], image[height // 2 :, width // 2 :] = 255, 128
    return image


@pytest.fixture(scope="module")
def own_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A person's data in the forms that scripts take: arrays, an image folder of PNG, one of JPEG."""
    root = tmp_path_factory.mktemp("own")
    pictures = [picture(i, 28, 28) for i in range(N)]
    np.savez(root / "arrays.npz", images=np.stack(pictures), labels=np.arange(N) % CLASSES)
    for i, image in enumerate(pictures):
        for name in ("png", "jpg"):
            folder = root / name / f"class-{i % CLASSES}"
            folder.mkdir(parents=True, exist_ok=True)
            if name == "png":
                Image.fromarray(image).save(folder / f"{i:03d}.png")
                continue
            grey = picture(i, 240, 320)
            colours = np.stack([grey, 255 - grey, np.full_like(grey, 77)], 2)
            Image.fromarray(colours).save(folder / f"{i:03d}.jpg", quality=95, subsampling=0)
    return {"arrays": root / "arrays.npz", "png": root / "png", "jpg": root / "jpg"}


def wanted(config: RunConfig, own_data: dict[str, Path], tmp_path: Path) -> Path:
    """The data that a script of `config` takes, linked to where it may prepare something beside them."""
    if DATASETS[config.dataset].kind == "jpeg":
        form = "jpg"
    else:
        parts = strategy(config.strategy).combination(dataset_info(config.dataset), dataclasses.asdict(config))
        form = "png" if parts.storage == "files" else "arrays"
    link = tmp_path / own_data[form].name
    link.symlink_to(own_data[form])
    return link


def loaded(text: str, path: Path) -> ModuleType:
    """The script as a module."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, "LOCAL"):
        module.LOCAL = path.parent / "local"
    if hasattr(module, "BLOCK"):
        module.BLOCK = 8
    return module


def seen_in_epoch(module: ModuleType, loader: Any) -> tuple[list[int], list[int]]:
    """Which samples came, in their order, and how large the batches were. Checks pixels and labels."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (module.MEAN, module.STD))
    order, sizes = [], []
    for images, labels in loader:
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        side = images.shape[-1]
        middles = torch.tensor([side // 4, 3 * side // 4])  # of the quadrants
        pixels = (images.cpu()[:, :, middles[:, None], middles] * std + mean) * 255
        samples = (pixels[:, 0, 0, 0] / STEP).round().int()
        for (y, x), value in {(0, 1): 0, (1, 0): 255, (1, 1): 128}.items():
            assert (pixels[:, 0, y, x] - value).abs().max() < STEP / 2
        if pixels.shape[1] == 3:
            assert (pixels[:, 0] + pixels[:, 1] - 255).abs()[:, 0, 0].max() < STEP
            assert (pixels[:, 2, 0, 0] - 77).abs().max() < STEP
        assert (samples % CLASSES == labels.cpu()).all()
        order += samples.tolist()
        sizes.append(len(labels))
    return order, sizes


def check(config: RunConfig, own_data: dict[str, Path], tmp_path: Path) -> None:
    """Two epochs of a script: each sample once, in another order; then a training that ends with a finite loss."""
    torch.set_num_threads(1)
    module = loaded(script(config), tmp_path / "script.py")
    data = wanted(config, own_data, tmp_path)
    loader, n_classes = module.make_loader(data, torch.device("cpu"))
    assert n_classes == CLASSES
    (first, sizes), (second, _) = (seen_in_epoch(module, loader) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(N))
    assert sizes == [BATCH, BATCH, BATCH, N % BATCH]
    in_order = (config.strategy, config.shuffle) == ("pt-whole", None)
    in_order |= (config.strategy, config.dataset) == ("hdf5-chunked", "digits")  # all of them are one block
    assert (first == second) == in_order
    module.make_loader = lambda *_, kept=loader: (kept, n_classes)  # the same one, whose workers run
    assert math.isfinite(module.train(data, 1))
    # Ends the workers. Left to the garbage collector, which takes their queues first, that would take 5 s.
    del module.make_loader, loader
    assert not list(tmp_path.rglob("*.tmp"))


def job(name: str, dataset: str, **settings: Any) -> RunConfig:
    """The strategy with unchanged pixels, and with a worker where it has any: on photos only where it must.

    The worker processes' side of a script is the same for both.
    """
    plan, info = strategy(name), dataset_info(dataset)
    parts = plan.combination(info, settings)
    taken = plan.knobs(parts, info)
    alone = dataset == "photos" and parts.loader == "dataloader" and name != "prefetch"
    some = {"workers": 0 if alone else 1} if "workers" in taken else {}
    model = "tiny" if dataset == "digits" else "ti/16"
    settings = {"batch_size": BATCH, "augment": "off", "model": model} | some | settings
    return RunConfig(strategy=name, dataset=dataset, **settings)


def cases() -> list[Any]:
    found = []
    for dataset in ("digits", "photos"):
        for name in STRATEGIES:
            try:
                script(job(name, dataset))
            except ConfigError:
                assert LOADERS[strategy(name).loader].kinds == ("jpeg",)
                assert dataset == "digits"
                continue
            compiled = "" if runs_here(name) else "-compiled-only"
            found.append(pytest.param(name, dataset, id=f"{name}-{dataset}{compiled}"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dataset"), cases())
def test_the_script_of_every_strategy_feeds_each_sample_once(
    name: str, dataset: str, own_data: dict[str, Path], tmp_path: Path
) -> None:
    config = job(name, dataset)
    if not runs_here(name):
        compile(script(config), "script.py", "exec")
        return
    check(config, own_data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dataset", "settings"),
    [
        ("per-sample", "digits", {"loader": "generator"}),
        ("threads", "photos", {"decoder": "torchvision", "transfer": "stream", "cache_mb": 0.1}),
        ("threads", "digits", {"decoder": "pil", "transfer": "blocking", "shuffle": "block"}),
        ("generator", "photos", {"decoder": "pil", "storage": "hdf5-encoded", "transfer": "pinned"}),
        ("hdf5-chunked", "digits", {"loader": "dataloader", "cache_mb": 0.01}),
        ("lmdb", "digits", {"pin_memory": False, "start_method": "fork", "location": "ram-disk"}),
        ("memory", "digits", {"image_size": 56, "model": "tiny", "transfer": "stream"}),
        ("pt-whole", "digits", {"loader": "ahead", "transfer": "pinned"}),
        ("prefetch", "photos", {"decoder": "opencv", "workers": 0, "precision": "fp32"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_other_parts_and_settings(
    name: str, dataset: str, settings: dict[str, Any], own_data: dict[str, Path], tmp_path: Path
) -> None:
    check(job(name, dataset, **settings), own_data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dataset", "settings"),
    [
        ("per-sample", "digits", {"augment": "cpu"}),
        ("per-sample", "photos", {"augment": "cpu"}),
        ("threads", "photos", {"augment": "cpu"}),
        ("threads", "digits", {"augment": "cpu"}),
        ("memory", "digits", {"augment": "device", "precision": "bf16", "cudnn_benchmark": True}),
        ("preprocessed", "photos", {"augment": "device"}),
        ("preprocessed", "photos", {"augment": "cpu"}),
        ("workers", "digits", {"augment": "device"}),
        *(
            pytest.param(
                name,
                "photos",
                {"augment": "cpu"},
                marks=pytest.mark.skipif(not runs_here(name), reason=f"what {name} needs is not installed"),
            )
            for name in ("dali",)
        ),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_augmentation_changes_pixels_and_nothing_else(
    name: str, dataset: str, settings: dict[str, Any], own_data: dict[str, Path], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    config = job(name, dataset, **settings)
    module = loaded(script(config), tmp_path / "script.py")
    data = wanted(config, own_data, tmp_path)
    loader, _ = module.make_loader(data, torch.device("cpu"))
    epochs = [list(loader), list(loader)]
    info = dataset_info(dataset)
    for batches in epochs:
        assert torch.cat([labels for _, labels in batches]).bincount().tolist() == [N // CLASSES] * CLASSES
        assert all(images.shape[1:] == (info.channels, info.image_size, info.image_size) for images, _ in batches)
        assert all(images.isfinite().all() for images, _ in batches)
    sums = [sorted(float(image.sum()) for images, _ in batches for image in images) for batches in epochs]
    assert sums[0] != sums[1]


def every_script() -> dict[str, str]:
    """Scripts of every legal combination of parts, and of settings that change the text."""
    found: dict[str, str] = {}
    for dataset, model in (("digits", "tiny"), ("photos", "ti/16")):
        info = dataset_info(dataset)
        for parts in legal_combinations(info):
            plain = parts.location != "disk"
            if plain and parts.transfer != "pinned":  # where files lie changes nothing about transfers
                continue
            chosen: dict[str, Any] = dataclasses.asdict(parts)
            for settings in [{}] if plain else settings_of(parts, info):
                config = RunConfig(strategy="workers", dataset=dataset, model=model, **chosen, **settings)
                if parts.loader == "dali" and parts.storage != "files":
                    with pytest.raises(ConfigError, match="no script for DALI over"):
                        script(config)
                    continue
                text = script(config, found="1,234 samples/s, n = 3", run_id=7)
                found.setdefault(text, "-".join([dataset, *chosen.values(), *map(str, settings.values())]))
    return {name: text for text, name in found.items()}


def settings_of(parts: Combination, info: DatasetInfo) -> list[dict[str, Any]]:
    """Settings that these parts take and that change the text, each by itself."""
    knobs = parts.knobs()
    if parts.transfer == "blocking" and not LOADERS[parts.loader].decodes:  # where "pinned" is legal too, and says more
        return [{}]
    more: list[dict[str, Any]] = [{}, {"augment": "device", "precision": "bf16", "compile": True, "image_size": 112}]
    if parts.storage != "memory-float" and parts.transfer != "resident":
        more.append({"augment": "cpu"})
    if "shuffle" in knobs:
        more += [{"shuffle": "block"}, {"shuffle": "none", "augment": "off"}]
    if "decoder" in knobs and parts.transfer == "pinned":
        more += [{"decoder": name} for name in DECODERS[info.kind]]
    if "start_method" in knobs:
        more += [{"workers": 0}, {"pin_memory": False, "start_method": "spawn", "persistent_workers": False}]
    if "cache_mb" in knobs and parts.transfer == "pinned":
        more.append({"cache_mb": 12.5})
    return more


@pytest.mark.slow
def test_every_legal_combination_is_clean_python(tmp_path: Path) -> None:
    scripts = every_script()
    assert len(scripts) > 500
    for text in scripts.values():
        assert "vitprof" not in text.partition('"""\n\n')[2]
        assert "$" not in text
    for i, text in enumerate(scripts.values()):
        (tmp_path / f"script_{i}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "E,F,W,I,C4"]
    checked = subprocess.run([*command, str(tmp_path)], check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"precision": "tf32"}, ['torch.set_float32_matmul_precision("high")']),
        ({"precision": "fp16"}, ["torch.autocast(device.type, torch.float16)", "scaler.scale(loss).backward()"]),
        (
            {"fused_optimizer": True, "compile": True, "compile_mode": "reduce-overhead"},
            ["lr=LEARNING_RATE, fused=True)", "torch.compile(model, mode='reduce-overhead')"],
        ),
    ],
    ids=["tf32", "fp16", "launches"],
)
def test_how_it_trains_is_in_the_script(settings: dict[str, Any], lines: list[str]) -> None:
    text = script(job("memory-ahead", "digits", **settings))
    compile(text, "script.py", "exec")
    assert all(line in text for line in lines)


@pytest.mark.slow
def test_a_script_runs_on_its_own(tmp_path: Path) -> None:
    """In a process that has no vitprof to import, from another directory."""
    path = tmp_path / "script.py"
    path.write_text(script(job("memory-ahead", "digits", precision="fp16", fused_optimizer=True)), encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VITPROF"))}
    env["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, str(path), "--demo"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "epoch 1: loss" in ended.stdout
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == ["script.py"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"cache_mb": 0.1}], ids=["plain", "cached"])
def test_a_file_that_cannot_be_decoded_is_named(
    settings: dict[str, Any], own_data: dict[str, Path], tmp_path: Path
) -> None:
    module = loaded(script(job("threads", "photos", decoder="simplejpeg", **settings)), tmp_path / "script.py")
    data = tmp_path / "data"
    shutil.copytree(own_data["jpg"], data)
    broken = data / "class-3" / "003.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    loader, _ = module.make_loader(data, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"class-3/003\.jpg cannot be decoded: "):
        list(loader)
    shutil.copy(own_data["png"] / "class-0" / "000.png", data / "class-0" / "x.PNG")
    with pytest.raises(SystemExit, match=r"class-0/x\.PNG: not a JPEG file, .* \(1 such files\)"):
        module.make_loader(data, torch.device("cpu"))


def test_what_is_prepared_lies_where_it_is_wished_and_fits_its_size(own_data: dict[str, Path], tmp_path: Path) -> None:
    module = loaded(script(job("preprocessed", "photos")), tmp_path / "script.py")
    module.PREPARED = tmp_path / "fast"
    made = []
    for size in (32, 16):
        module.SIZE = size
        made.append(module.prepare(own_data["jpg"]))
        assert np.load(made[-1] / "images.npy", mmap_mode="r").shape == (N, size, size, 3)
    assert {path.parent for path in made} == {tmp_path / "fast"}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What a script takes for a GPU: copies to it go to the card."""

    card: Card
    type: str = "cuda"

    def put_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.card.put_in(monkeypatch)
        to = torch.Tensor.to

        def moved(tensor: torch.Tensor, *where: Any, **how: Any) -> torch.Tensor:
            return self.card.copy(tensor, **how) if where == (self,) else to(tensor, *where, **how)

        monkeypatch.setattr(torch.Tensor, "to", moved)


def on_a_gpu(
    config: RunConfig, own_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModuleType, Any, Card]:
    """A script and its loader, on a stand-in for the GPU."""
    module, gpu = loaded(script(config), tmp_path / "script.py"), Gpu(Card())
    gpu.put_in(monkeypatch)
    if hasattr(module, "Buffers"):
        make = module.Buffers
        monkeypatch.setattr(module, "Buffers", lambda n, shape, _: make(n, shape, gpu))
    loader, _ = module.make_loader(wanted(config, own_data, tmp_path), torch.device("cpu"))
    loader.device = gpu
    if config.transfer == "stream":
        loader.stream = gpu.card.new_stream()
    return module, loader, gpu.card


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("memory", {}),
        ("memory-ahead", {"prefetch_factor": 2, "transfer": "stream"}),
        ("threads", {"workers": 2}),
        ("generator", {"transfer": "stream"}),
        ("hdf5", {"workers": 0, "pin_memory": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_copy_takes_a_batch_out_of_a_buffer_that_is_not_filled_while_it_is_read(
    name: str, settings: dict[str, Any], own_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffers are used again, each after the copy out of it was waited for."""
    config = job(name, "digits", **(settings | {"batch_size": 8}))
    module, loader, card = on_a_gpu(config, own_data, tmp_path, monkeypatch)
    order, sizes = seen_in_epoch(module, loader)
    assert sorted(order) == list(range(N))
    assert card.copied == [8 * 8 + 28 * 28 * size for size in sizes], "of the smaller last one only its part"
    n_buffers = len(loader.buffers.ring)
    assert n_buffers < len(sizes)
    assert all(buffer.is_pinned() for buffer in loader.buffers.ring)
    assert card.calls.count("wait") >= len(sizes) - n_buffers
    assert card.calls.count("join") == (len(sizes) if config.transfer == "stream" else 0)
    broken_off = iter(loader)
    next(broken_off)
    broken_off.close()
    assert sorted(seen_in_epoch(module, loader)[0]) == list(range(N))


@pytest.mark.parametrize("transfer", ["pinned", "stream"])
def test_what_nobody_pinned_is_pinned_by_itself(
    transfer: str, own_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = job("per-sample", "digits", loader="generator", transfer=transfer)
    module, loader, card = on_a_gpu(config, own_data, tmp_path, monkeypatch)
    copy = Card.copy

    def pinned_only(card: Card, tensor: torch.Tensor, **how: Any) -> torch.Tensor:
        assert tensor.is_pinned()
        return copy(card, tensor, **how)

    monkeypatch.setattr(Card, "copy", pinned_only)
    order, sizes = seen_in_epoch(module, loader)
    assert sorted(order) == list(range(N))
    assert len(card.copied) == 2 * len(sizes)


def test_the_head_says_where_it_comes_from() -> None:
    head = script(job("slow-drive", "photos"), found='a """ b \\', run_id=17).split('"""')[1]
    assert "run 17: strategy slow-drive" in " ".join(head.split())
    assert "simulate a slow one" in " ".join(head.split())
    assert "a ''' b /" in head


def test_the_head_says_what_was_measured_and_on_what() -> None:
    def told(device: str, found: str) -> str:
        return " ".join(script(RunConfig(strategy="memory", device=device), found).split('"""')[1].split())

    assert "measured on the data set digits: 9 samples/s in steady state. DATA" in told(
        "cpu", "9 samples/s in steady state"
    )
    assert "9 samples/s, on a simulated device" in told("simulated:66,70", "9 samples/s")
    assert "simulated" not in told("simulated:66,70", "")


@pytest.mark.parametrize("settings", [{"replay": "device"}, {"inject": "read:5"}])
def test_what_has_no_script_says_so(settings: dict[str, Any]) -> None:
    with pytest.raises(VitprofError, match="no script") as raised:
        script(RunConfig(**settings))
    assert "\n" not in str(raised.value)
