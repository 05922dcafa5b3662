"""A user's own data set on disk, as built-in jobs read it."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.datasets.own.test_readers import IMAGES, KINDS, N, folder, made, odd, written
from vitprof.datasets import on_disk
from vitprof.datasets.catalog import dataset_info
from vitprof.datasets.files import never, silent
from vitprof.datasets.own import registry
from vitprof.datasets.own.layout import eight_bits, named_errors
from vitprof.datasets.own.look import look
from vitprof.engine.decoders import open_decoder
from vitprof.engine.locations.copying import copy_tree, tree_bytes
from vitprof.engine.storage.prepare import allocated_bytes
from vitprof.engine.storage.source import open_source
from vitprof.engine.transforms import Crop
from vitprof.errors import DataError, SampleError


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_brought_into_its_place(kind: str, tmp_path: Path) -> None:
    registry.add(look("mine", made(kind, tmp_path)).own)
    info, root = dataset_info("mine"), on_disk.prepare("mine")
    splits = [open_source(info, root, train=train) for train in (True, False)]
    assert [len(split.labels) for split in splits] == [info.n_train, info.n_test]
    assert sorted([*splits[0].labels, *splits[1].labels]) == sorted(at % 3 for at in range(N))
    assert [path.is_symlink() for path in root.glob("*/*/*.*")] == [
        kind in ("folder", "csv", "parquet")
    ] * N
    before = os.stat(root).st_ino
    assert os.stat(on_disk.prepare("mine")).st_ino == before, "made once"


def test_a_set_that_has_changed_is_looked_at_again(tmp_path: Path) -> None:
    spec = folder(tmp_path / "f")
    registry.add(look("mine", spec).own)
    written(tmp_path / "f" / "c1" / "more.jpg", IMAGES[0])
    with pytest.raises(
        DataError,
        match=f"has changed since it was looked at; look again: .*vitprof datasets add mine {spec}",
    ):
        on_disk.prepare("mine")
    registry.add(look("mine", spec).own)
    assert len(list(on_disk.prepare("mine").glob("*/*/*.*"))) == N + 1
    (tmp_path / "f" / "c1" / "more.jpg").unlink()
    with pytest.raises(
        SampleError, match=rf"\(No such file or directory\); .* look at .* datasets add mine {spec}"
    ):
        on_disk.prepare("mine")
    registry.add(look("mine", spec).own)
    assert len(list(on_disk.prepare("mine").glob("*/*/*.*"))) == N
    written(tmp_path / "f" / "c1" / "01.jpg", IMAGES[0])
    with pytest.raises(SampleError, match="look at the set again"):
        on_disk.prepare("mine")
    registry.add(look("mine", spec).own)
    on_disk.prepare("mine")


def test_links_that_lead_nowhere_are_samples_that_cannot_be_read(tmp_path: Path) -> None:
    spec = folder(tmp_path / "f")
    broken = tmp_path / "f" / "c1" / "gone.jpg"
    broken.symlink_to("/no/such/image.jpg")
    registry.add(look("mine", spec).own)
    info = dataset_info("mine")
    with pytest.raises(SampleError) as caught, named_errors(info):
        on_disk.prepare("mine")
    assert str(caught.value).startswith(
        f"{broken} cannot be read (No such file or directory); skip such samples"
    )
    root = on_disk.prepare("mine", skip_unreadable=True)
    (link,) = (path for path in root.glob("*/*/*.*") if not path.exists())
    source = open_source(info, root, train=link.parts[-3] == "train")
    with pytest.raises(SampleError, match=f"{link} cannot be read"):
        source.encoded(0, len(source.ids))
    assert allocated_bytes(root) > 0
    doing = {"throttle": None, "progress": silent, "stop": never}
    with pytest.raises(DataError, match=f"{link} cannot be read"):
        copy_tree(root, tmp_path / "copy", **doing)
    copied = copy_tree(root, tmp_path / "copy", skip_unreadable=True, **doing)
    assert copied.n_bytes == tree_bytes(root, skip_unreadable=True)
    assert os.readlink(tmp_path / "copy" / link.relative_to(root)) == str(broken)
    # A set that was made before its image went is the same.
    with pytest.raises(SampleError, match="No such file"):
        on_disk.prepare("mine")
    broken.unlink()
    written(broken, IMAGES[0])
    with pytest.raises(SampleError, match="is damaged"):
        on_disk.prepare("mine")
    registry.add(look("mine", spec).own)
    assert on_disk.prepare("mine") == root


def test_links_out_of_a_pages_roots_stay_out(tmp_path: Path) -> None:
    spec = folder(tmp_path / "root" / "f")
    (tmp_path / "root" / "f" / "c0" / "link.jpg").symlink_to(
        written(tmp_path / "secret.jpg", IMAGES[0])
    )
    registry.add(look("mine", spec, allowed=[tmp_path / "root"]).own)
    assert len(list(on_disk.prepare("mine").glob("*/*/*.*"))) == N
    registry.add(look("mine", spec).own)
    assert len(list(on_disk.prepare("mine").glob("*/*/*.*"))) == N + 1, (
        "on the command line they are followed"
    )


@pytest.mark.parametrize("name", ["simplejpeg", "opencv", "pil", "torchvision"])
def test_decoders_read_what_people_have(name: str, tmp_path: Path) -> None:
    registry.add(odd(tmp_path / "odd").own)
    root = on_disk.prepare("odd")
    seen = {}
    for path in sorted(root.glob("train/*/*")):
        out = np.zeros((40, 48, 3), np.uint8)[:40, :40].copy()
        try:
            open_decoder(name)(path.read_bytes(), lambda h, w: Crop(0, 0, 40, 40, flip=False), out)
        except ValueError:
            continue
        with Image.open(path) as image:
            expected = np.asarray(image.convert("RGB"))[:40, :40]
        seen[os.path.basename(os.path.realpath(path))] = np.abs(out.astype(int) - expected).mean()
    assert len(seen) == 12, "all but those that are empty, cut or text"
    assert max(seen.values()) < 3.0, seen


def test_more_bits_become_eight() -> None:
    deep = Image.fromarray(np.array([[0, 65535, 32768]], np.uint16))
    assert np.asarray(eight_bits(deep))[0, :, 0].tolist() == [0, 255, 127]
    assert np.asarray(eight_bits(Image.fromarray(np.array([[0.0, 0.5]], np.float32))))[
        0, :, 0
    ].tolist() == [0, 255]
    assert eight_bits(Image.new("RGBA", (2, 2))).mode == "RGB"


def test_an_error_names_the_users_file(tmp_path: Path) -> None:
    registry.add(look("mine", folder(tmp_path / "f")).own)
    link = next(on_disk.prepare("mine").glob("train/*/*.jpg"))
    with pytest.raises(SampleError) as caught, named_errors(dataset_info("mine")):
        raise SampleError(f"{link} cannot be read (it is empty); delete the data set's directory")
    assert str(caught.value).startswith(
        f"{os.readlink(link)} cannot be read (it is empty); skip such samples"
    )
    with pytest.raises(SampleError, match="as it is; twice"), named_errors(dataset_info("digits")):
        raise SampleError("as it is; twice")
