"""Every strategy's script, run on images whose pixels say which sample they are and where in it they are."""

import ast
import dataclasses
import importlib.util
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.config.configs import legal_combinations
from vitprof.config import RunConfig
from vitprof.config.availability import installed
from vitprof.config.parts import LOADERS
from vitprof.config.strategies import PLUGGED, STRATEGIES, strategy
from vitprof.datasets.catalog import DATASETS, dataset_info
from vitprof.errors import ConfigError, VitprofError
from vitprof.export.code import CONSTANT, FOLDER, WITHOUT, script, whole

N = 40
CLASSES = 10
BATCH = 16
SIDE = 64
"""Of photos where it does not matter, in pixels: a tenth of the work of the 224 that scripts come with."""
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
    """A person's image folders, by kind of data set: small grey PNG files, and JPEG files in colour."""
    root = tmp_path_factory.mktemp("own")
    kinds = {kind: root / kind for kind in ("idx", "jpeg")}
    for i in range(N):
        small, large = (
            kinds[kind] / f"class-{i % CLASSES}" / f"{i:03d}" for kind in ("idx", "jpeg")
        )
        for path in (small, large):
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(i, 28, 28)).save(small.with_suffix(".png"))
        grey = picture(i, 240, 320)
        colours = np.stack([grey, 255 - grey, np.full_like(grey, 77)], 2)
        Image.fromarray(colours).save(large.with_suffix(".jpg"), quality=95, subsampling=0)
    return kinds


def wanted(config: RunConfig, own_data: dict[str, Path], tmp_path: Path) -> Path:
    """The data that a script of `config` takes, linked to where it may prepare something beside them."""
    kind = DATASETS[config.dataset].kind
    (tmp_path / kind).symlink_to(own_data[kind])
    return tmp_path / kind


def loaded(text: str, path: Path) -> ModuleType:
    """The script as a module."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # for what is sent to workers
    spec.loader.exec_module(module)
    if hasattr(module, "LOCAL"):
        module.LOCAL = path.parent / "local"
    return module


def with_small_photos(text: str) -> str:
    """A script of whose photos the side is set as its user may set it, and in whose chunks are few of the samples."""
    text = text.replace("\nCHUNK_ROWS = 256\n", "\nCHUNK_ROWS = 8\n")
    return re.sub(r"^(SIZE|INPUT_SIZE) = 224\b", rf"\1 = {SIDE}", text, flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def _no_script_is_left() -> Iterator[None]:
    yield
    sys.modules.pop("script", None)


def seen_in_epoch(module: ModuleType, loader: Any) -> tuple[list[int], list[int]]:
    """Which samples came, in their order, and how large the batches were. Checks pixels and labels."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (module.MEAN, module.STD))
    order, sizes = [], []
    for images, labels in loader:
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
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


def job(name: str, dataset: str, **settings: Any) -> RunConfig:
    """The strategy with unchanged pixels, and with a worker where it has any: on photos only where it must. The worker
    processes' side of a script is the same for both."""
    plan, info = strategy(name), dataset_info(dataset)
    parts = plan.combination(info, settings)
    taken = plan.knobs(parts, info)
    alone = dataset == "photos" and parts.loader == "dataloader" and name != "prefetch"
    some = {"workers": 0 if alone else 1} if "workers" in taken else {}
    model = "tiny" if dataset == "digits" else "ti/16"
    settings = {"batch_size": BATCH, "augment": "off", "model": model} | some | settings
    return RunConfig(strategy=name, dataset=dataset, **settings)


OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("threads", "photos", {"decoder": "opencv", "transfer": "stream"}),
    ("generator", "photos", {"transfer": "pinned", "shuffle": "none"}),
    ("hdf5-chunked", "digits", {"loader": "dataloader", "cache_mb": 0.01}),
    ("memory", "digits", {"image_size": 56, "model": "tiny", "transfer": "stream"}),
    ("pt-mmap", "digits", {"loader": "dataloader"}),
    ("prefetch", "photos", {"decoder": "opencv", "workers": 0, "precision": "fp32"}),
]
"""Parts and settings that are not the strategies' own."""


def cases() -> Iterator[Any]:
    plugged = {
        *PLUGGED["loaders"],
        *PLUGGED["storages"],
    }  # parts that come by an entry point have no script
    written = [
        name for name, plan in STRATEGIES.items() if not {plan.loader, plan.storage} & plugged
    ]
    loads = {name: LOADERS[strategy(name).loader].kinds for name in written}
    own = [
        (name, kind, {})
        for kind in ("digits", "photos")
        for name in written
        if DATASETS[kind].kind in loads[name]
    ]
    for name, dataset, settings in own + OTHERS:
        words = [name, dataset, *settings.values(), *([] if runs_here(name) else ["compiled-only"])]
        yield pytest.param(name, dataset, settings, id="-".join(map(str, words)))


@pytest.mark.parametrize(("name", "dataset", "settings"), list(cases()))
def test_every_script_feeds_each_sample_once(
    name: str, dataset: str, settings: dict[str, Any], own_data: dict[str, Path], tmp_path: Path
) -> None:
    """Two epochs of a script: each sample once, in another order; then a training that ends with a finite loss."""
    config = job(name, dataset, **settings)
    if not runs_here(name):
        compile(script(config), "script.py", "exec")
        return
    torch.set_num_threads(1)
    module = loaded(with_small_photos(script(config)), tmp_path / "script.py")
    assert dataset == "digits" or module.SIZE == SIDE
    data = wanted(config, own_data, tmp_path)
    loader, n_classes = module.make_loader(data, torch.device("cpu"))
    assert n_classes == CLASSES
    (first, sizes), (second, _) = (seen_in_epoch(module, loader) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(N))
    assert sizes == [BATCH, BATCH, N % BATCH]
    in_order = config.shuffle == "none" or config.strategy == "pt-whole"
    assert (first == second) == in_order
    module.make_loader = lambda *_, kept=loader: (
        kept,
        n_classes,
    )  # the same one, whose workers run
    assert math.isfinite(module.train(data, 1))
    # Ends the workers. Left to the garbage collector, which takes their queues first, that would take 5 s.
    del module.make_loader, loader
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("name", ["lmdb", "hdf5-chunked", "pt-mmap"])
def test_what_a_spawned_worker_is_sent_reads_the_same(
    name: str, own_data: dict[str, Path], tmp_path: Path
) -> None:
    config = job(name, "digits", loader="dataloader", pin_memory=False, start_method="spawn")
    module = loaded(script(config), tmp_path / "script.py")
    loader = module.make_loader(wanted(config, own_data, tmp_path), torch.device("cpu"))[0].loader
    assert loader.multiprocessing_context.get_start_method() == "spawn"

    def read(samples: Any, collate: Any) -> Any:
        return collate(samples.__getitems__(list(range(N))))

    here = read(loader.dataset, loader.collate_fn)  # first: what is open is not sent
    sent = pickle.dumps((loader.dataset, loader.collate_fn))
    del loader  # LMDB opens a file once in each process
    assert all(map(torch.equal, here, read(*pickle.loads(sent))))


@pytest.mark.parametrize(
    ("name", "dataset", "settings"),
    [
        ("per-sample", "photos", {"augment": "cpu"}),
        ("threads", "photos", {"augment": "cpu"}),
        ("memory", "digits", {"augment": "device", "precision": "bf16", "cudnn_benchmark": True}),
        ("preprocessed", "photos", {"augment": "device"}),
        ("dali", "photos", {"augment": "cpu"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_augmentation_changes_pixels_and_nothing_else(
    name: str, dataset: str, settings: dict[str, Any], own_data: dict[str, Path], tmp_path: Path
) -> None:
    if not runs_here(name):
        pytest.skip(f"what {name} needs is not installed")
    torch.set_num_threads(1)
    config = job(name, dataset, **settings)
    module = loaded(script(config), tmp_path / "script.py")
    loader, _ = module.make_loader(wanted(config, own_data, tmp_path), torch.device("cpu"))
    epochs = [list(loader), list(loader)]
    info = dataset_info(dataset)
    for batches in epochs:
        assert (
            torch.cat([labels for _, labels in batches]).bincount().tolist()
            == [N // CLASSES] * CLASSES
        )
        assert all(
            images.shape[1:] == (info.channels, info.image_size, info.image_size)
            for images, _ in batches
        )
        assert all(images.isfinite().all() for images, _ in batches)
    sums = [
        sorted(float(image.sum()) for images, _ in batches for image in images)
        for batches in epochs
    ]
    assert sums[0] != sums[1]


def test_every_legal_combination_is_clean_python_or_refused_in_a_line(tmp_path: Path) -> None:
    texts, refused = set(), list[str]()
    for dataset, model in (("digits", "tiny"), ("photos", "ti/16")):
        for parts in legal_combinations(dataset_info(dataset)):
            config = RunConfig(
                strategy="workers", dataset=dataset, model=model, **dataclasses.asdict(parts)
            )
            try:
                texts.add(script(config, found="1,234 samples/s, n = 3", run_id=7))
            except ConfigError as error:
                refused.append(str(error))
    assert len(texts) > 100
    assert refused
    assert all(
        "there is no script for it with loader" in line and "\n" not in line for line in refused
    )
    for i, text in enumerate(texts):
        assert "vitprof" not in text.split('"""')[2]
        (tmp_path / f"script_{i}.py").write_text(text, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "E,F,W,I,C4",
    ]
    command += ["--line-length", "120", str(tmp_path)]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout[-2000:]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("memory", {}),
        ("memory-ahead", {"prefetch_factor": 2, "transfer": "stream"}),
        ("threads", {"workers": 2}),
        ("generator", {"transfer": "stream"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none here"
)
def test_batches_are_copied_from_pinned_memory_without_waiting(
    name: str,
    settings: dict[str, Any],
    own_data: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = job(name, "digits", **settings)
    module = loaded(script(config), tmp_path / "script.py")
    loader, _ = module.make_loader(wanted(config, own_data, tmp_path), torch.device("cuda"))
    copied, joined, to, join = [], [], torch.Tensor.to, torch.cuda.Stream.wait_stream

    def copy(tensor: torch.Tensor, *where: Any, **how: Any) -> torch.Tensor:
        if where == (loader.device,):
            assert how == {"non_blocking": True}
            assert tensor.is_pinned() == (tensor.dtype == torch.uint8)  # labels are small
            copied.append(tensor.nbytes)
        return to(tensor, *where, **how)

    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(
        torch.cuda.Stream, "wait_stream", lambda stream, other: joined.append(join(stream, other))
    )
    sizes = [len(labels) for _, labels in loader]
    assert sum(sizes) == N
    assert copied == [n_bytes for size in sizes for n_bytes in (28 * 28 * size, 8 * size)]
    assert len(joined) == (len(sizes) if config.transfer == "stream" else 0)


def test_what_has_no_script_says_so_and_what_to_choose() -> None:
    for name, settings, complaint in (
        ("memory", {"replay": "device"}, "no script for what only measures"),
        ("threads", {"decoder": "pil"}, "decoder: 'pil' .*; choose simplejpeg or opencv"),
        (
            "memory",
            {"loader": "generator"},
            "loader: 'generator' .* over storage memory; choose batches or",
        ),
        ("memory", {"augment": "cpu"}, "augment: 'cpu' .*; choose off or device"),
        ("preprocessed", {"cache_mb": 1}, "cache_mb: 1 .*; choose 0"),
    ):
        with pytest.raises(VitprofError, match=complaint) as raised:
            script(RunConfig(strategy=name, **settings))
        assert "\n" not in str(raised.value)


def test_how_it_trains_is_in_the_script() -> None:
    launches = {"fused_optimizer": True, "compile": True, "compile_mode": "reduce-overhead"}
    for settings, lines in (
        ({"precision": "tf32"}, ['MATMUL = "high"']),
        ({"precision": "fp16"}, ['AUTOCAST = "float16"', "PREFETCH = 1"]),
        (launches, ["FUSED = True", 'COMPILE = "reduce-overhead"', 'MATMUL = "highest"']),
    ):
        text = script(job("memory-ahead", "digits", **settings))
        assert all(f"\n{line}  #" in text for line in lines)


@pytest.mark.measured
def test_a_script_runs_as_it_is_in_a_process_of_its_own(tmp_path: Path) -> None:
    """That has no vitprof to import, from another directory. One is enough: that of DALI, which survives no fork."""
    text = whole("dali" if runs_here("dali") else "samples")
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VITPROF"))
    }
    command = [sys.executable, "script.py", "--demo"]
    ended = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env=env | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert "epoch 1: loss" in ended.stdout


@pytest.mark.parametrize("name", ["threads", "prefetch"])
def test_a_file_that_cannot_be_decoded_is_named(
    name: str, own_data: dict[str, Path], tmp_path: Path
) -> None:
    module = loaded(
        script(job(name, "photos", workers=0 if name == "prefetch" else 1)), tmp_path / "script.py"
    )
    data = tmp_path / "data"
    shutil.copytree(own_data["jpeg"], data)
    broken = data / "class-3" / "003.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    loader, _ = module.make_loader(data, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"class-3/003\.jpg cannot be decoded: "):
        list(loader)


@pytest.mark.parametrize("size", [32, 16])
def test_what_is_prepared_is_where_it_is_wished_and_fits(
    size: int, own_data: dict[str, Path], tmp_path: Path
) -> None:
    text = script(job("preprocessed", "photos")).replace("\nSIZE = 224", f"\nSIZE = {size}")
    module = loaded(text, tmp_path / "script.py")
    module.PREPARED = tmp_path / "fast"
    module.make_loader(own_data["jpeg"], torch.device("cpu"))
    (made,) = module.PREPARED.iterdir()
    assert made.name.endswith(f"-{size}.npy")
    assert np.load(made, mmap_mode="r").shape == (N, size, size, 3)


def test_the_head_says_where_it_comes_from_what_was_measured_and_on_what() -> None:
    def head(device: str, found: str) -> str:
        return " ".join(
            script(RunConfig(strategy="memory", device=device), found).split('"""')[1].split()
        )

    slow = " ".join(
        script(job("slow-drive", "photos"), found='a """ b \\', run_id=17).split('"""')[1].split()
    )
    assert "run 17: strategy slow-drive" in slow
    assert "simulate a slow one" in slow
    assert "a ''' b /" in slow

    assert "measured on the data set digits: 9 samples/s, steady. DATA" in head(
        "cpu", "9 samples/s, steady"
    )
    assert "9 samples/s, on a simulated device" in head("simulated:66,70", "9 samples/s")
    assert "simulated" not in head("simulated:66,70", "")


def test_each_constant_is_one_line_with_its_comment() -> None:
    """`CONSTANT` reads them line by line: a value on a line of its own would lose its choices, and not be replaced."""
    for name in WITHOUT:
        text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        constants = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
        in_a_line = {line[1] for line in CONSTANT.finditer(text)}
        for node in constants:
            constant = ast.unparse(node.targets[0])
            if constant != "STORAGES":
                assert node.lineno == node.end_lineno, f"{name}: {constant}"
                assert constant in in_a_line, f"{name}: {constant}"
