"""The storage of a script: from the user's data to samples, pixels or encoded images."""

from __future__ import annotations

from vitprof.config.parts import LOADERS
from vitprof.errors import ConfigError
from vitprof.export.code.draft import Draft

CLASSES: dict[str, str] = {
    "raw-files": "RawFiles",
    "pt": "PtFiles",
    "pt-single": "PtMapped",
    "pt-whole": "PtWhole",
    "hdf5": "Hdf5",
    "hdf5-chunked": "Hdf5Chunks",
    "lmdb": "Lmdb",
    "memmap": "Mapped",
    "files": "Files",
    "hdf5-encoded": "Hdf5Files",
    "lmdb-encoded": "LmdbFiles",
}
"""Storage -> the class in its fragment, where it has one that opens a path."""


def add_storage(draft: Draft) -> None:
    """Adds to the draft how the user's data become what the strategy reads."""
    config, storage = draft.config, draft.config.storage or ""
    draft.blanks["ONLY_JPEG"] = ONLY_JPEG if config.decoder == "simplejpeg" else ""
    if draft.form == "encoded":
        draft.names.append("source_folder")
    elif storage != "imagefolder":
        draft.names.append("source_decoded" if draft.folder else "source_npz")
    if config.loader == "dali":
        _add_dali_source(draft)
        return
    prepared = {"files": "", "imagefolder": "", "idx": "", "pt-whole": "pt-single"}.get(storage, storage)
    if storage in ("memory", "memory-float"):
        prepared = "memmap" if draft.folder else ""
    if draft.form == "encoded":
        _add_decoder(draft, random=config.augment == "cpu" and draft.info.kind == "jpeg")
    if prepared:
        draft.names += ["prepared", f"prepare_{prepared}"]
        draft.path = "prepare(data)"
        # Another SIZE needs another file.
        draft.blanks["OF_SIZE"] = ".{SIZE}" if draft.folder and draft.form != "encoded" else ""
    _add_location(draft)
    if draft.form == "samples":
        _add_samples(draft)
        return
    _add_opened(draft)
    chunked = config.shuffle == "block" and storage == "hdf5-chunked"
    wrapped = bool(config.cache_mb) or config.augment == "cpu"
    if chunked and wrapped:
        draft.opening.append(f"rows = {draft.storage}")
        draft.storage = "rows"
    if config.shuffle == "block":
        draft.block = ("rows.block" if wrapped else "storage.block") if chunked else "BLOCK"
    if config.cache_mb:
        draft.names.append(f"cache_{draft.form}")
        draft.storage = f"Cached({draft.storage})"
    if draft.form == "encoded":
        _add_decoded(draft)
    if config.augment == "cpu" and (draft.form == "pixels" or draft.info.kind == "idx"):
        draft.names.append("augmented")
        draft.storage = f"Augmented({draft.storage})"
        draft.blanks["TRANSFORM"] = AUGMENT_PHOTOS if draft.info.kind == "jpeg" else AUGMENT_SMALL
    draft.opening.append(f"storage = {draft.storage}")


# What engine.augment does, by torchvision's transforms: a wider crop than RandomResizedCrop's default, since these
# images have been cropped once; small images are shifted by up to two pixels.
AUGMENT_PHOTOS = """AUGMENT = v2.Compose(
    [
        v2.RandomResizedCrop(SIZE, scale=(0.35, 1.0)),
        v2.RandomHorizontalFlip(),
        v2.RandomRotation(15),
    ]
)"""
AUGMENT_SMALL = "AUGMENT = v2.RandomAffine(15, translate=(2 / SIZE, 2 / SIZE))"


def _add_opened(draft: Draft) -> None:
    """Adds a storage of pixels or of encoded images."""
    storage = draft.config.storage or ""
    if storage == "memory":
        _add_arrays(draft)
        resident = draft.config.transfer == "resident"
        draft.names.append("storage_resident" if resident else "storage_memory")
        draft.storage = "Resident(images, labels, device)" if resident else "Memory(images, labels)"
        return
    if storage.startswith("lmdb"):
        draft.names.append("open_lmdb")
    draft.names.append(f"storage_{storage}")
    sliced = storage == "pt-whole" and draft.config.shuffle == "none" and draft.config.transfer == "blocking"
    sliced = sliced and draft.config.loader in ("batches", "ahead") and draft.config.augment != "cpu"
    draft.blanks["PT_READ"] = (
        "# In stored order: a batch is a slice, and nothing is copied.\n"
        "return self.images[indices[0] : indices[-1] + 1]"
        if sliced
        else "return torch.index_select(self.images, 0, indices, out=out)"
    )
    draft.storage = f"{CLASSES[storage]}({draft.path})"


def _add_arrays(draft: Draft) -> None:
    """Adds the lines that read the whole set into memory; for a folder, what was prepared from it."""
    if draft.folder:
        draft.opening += [
            f"path = {draft.path}",
            'images, labels = np.load(path / "images.npy"), np.load(path / "labels.npy")',
        ]
    else:
        draft.opening.append("images, labels = read_source(data)")


def _add_samples(draft: Draft) -> None:
    """Adds a Dataset of samples, as tutorials write it."""
    storage, random = draft.config.storage, draft.config.augment == "cpu"
    if storage == "imagefolder":
        draft.names.append("storage_imagefolder")
        crops = (
            ("transforms.RandomResizedCrop(SIZE)", "transforms.RandomHorizontalFlip()")
            if random
            else ("transforms.Resize(SIZE * 256 // 224)", "transforms.CenterCrop(SIZE)")
        )
        draft.blanks["CHANGES"] = "".join(f"{crop},\n" for crop in crops)
        draft.opening += [f"samples = open_folder({draft.path})", "n_classes = len(samples.classes)"]
        return
    if storage == "idx":
        draft.names.append("storage_idx")
        draft.blanks["CHANGES"] = (
            "shift = transforms.RandomCrop(SIZE, padding=2)\nsteps = [transforms.RandomRotation(15), shift, *steps]"
            if random
            else ""
        )
        draft.opening += ["images, labels = read_source(data)", "samples = Samples(images, labels)"]
    else:
        draft.names.append("storage_memory-float")
        _add_arrays(draft)
        draft.opening.append("samples = in_memory(images, labels)")
    draft.opening.append("n_classes = int(labels.max()) + 1")


def _add_decoder(draft: Draft, *, random: bool) -> None:
    draft.names.append("crop_random" if random else "crop_centre")
    if not LOADERS[draft.config.loader or ""].decodes:
        draft.names.append(f"decode_{draft.config.decoder}")
    flips = random and draft.info.flips
    grey = draft.info.channels == 1
    draft.blanks |= {
        "COLOUR": "cv2.IMREAD_GRAYSCALE" if grey else "cv2.IMREAD_COLOR",
        "TO_RGB": "[..., None]" if grey else "[..., ::-1]  # to RGB",
        "MODE": "GRAY" if grey else "RGB",
        "PIL_MODE": "L" if grey else "RGB",
        "FLIP": "if random.random() < 0.5:\n    row[:] = row[:, ::-1].copy()" if flips else "",
        "FLIP_ROW": "row = row.flip(-1) if random.random() < 0.5 else row" if flips else "",
    }


def _add_decoded(draft: Draft) -> None:
    """Adds the decoding of what the storage gives, unless the loader decodes."""
    decodes = LOADERS[draft.config.loader or ""].decodes
    files = "self.storage" if decodes else "self.files"
    paths = f"{files}.files.paths" if draft.config.cache_mb else f"{files}.paths"
    draft.blanks["WHICH"] = f"{paths}[index]" if draft.config.storage == "files" else 'f"image {index}"'
    if not decodes:
        draft.names.append("decoded")
        draft.storage = f"Decoded({draft.storage})"


def _add_location(draft: Draft) -> None:
    location = draft.config.location
    if location in ("ram-disk", "staged"):
        draft.names += ["copy_files", f"location_{location}"]
        draft.path = f"{'on_ram_disk' if location == 'ram-disk' else 'staged'}({draft.path})"


def _add_dali_source(draft: Draft) -> None:
    if draft.config.storage != "files":
        raise ConfigError("loader", "dali", f"there is no script for DALI over {draft.config.storage}; choose files")
    _add_location(draft)
    crop = draft.config.augment == "cpu"
    draft.blanks["DALI_IMAGES"] = DALI_RANDOM if crop else DALI_CENTRE


ONLY_JPEG = """others = [p for p, _ in folder.samples if not p.lower().endswith((".jpg", ".jpeg"))]
if others:
    raise SystemExit(
        f"{others[0]}: not a JPEG file, and simplejpeg decodes no others; "
        f"convert or move it ({len(others)} such files)"
    )"""
DALI_RANDOM = """images = fn.decoders.image_random_crop(
    encoded,
    device=device,
    random_area=[0.08, 1],
    random_aspect_ratio=[3 / 4, 4 / 3],
)
images = fn.resize(
    images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True
)
images = fn.flip(images, horizontal=fn.random.coin_flip())"""
DALI_CENTRE = """images = fn.decoders.image(encoded, device=device)
images = fn.resize(
    images,
    resize_shorter=SIZE * 256 // 224,
    interp_type=types.INTERP_LINEAR,
    antialias=True,
)
images = fn.crop(images, crop=(SIZE, SIZE))"""
