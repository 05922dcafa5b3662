"""The transfer of a script: how a batch reaches the device, and what is done with it there."""

from __future__ import annotations

import textwrap

from vitprof.config.parts import LOADERS
from vitprof.export.code.assemble import fragment
from vitprof.export.code.draft import AUTOCAST, Draft
from vitprof.export.code.loaders import COPIES


def add_transfer(draft: Draft) -> None:
    """Adds to the draft how a batch reaches the device, and what is done with it there."""
    config = draft.config
    buffers = draft.fills_buffers or draft.copies_to_buffers
    if buffers:
        # Before the loader, which gets them as an argument.
        draft.names.append("buffers")
        draft.blanks["FILLED"] = FILLED if draft.copies_to_buffers else ""
    if draft.copies_to_buffers:
        draft.opening += [
            "shape = (batch_size, *storage.shape)",
            f"buffers = Buffers({COPIES}, shape, device)",
        ]
    steps = _steps(draft)
    draft.blanks["TO_INPUT"] = ""
    if steps:
        if any(step.startswith("images = augment(") for step in steps):
            draft.names.append("augment_device")
        draft.blanks["STEPS"] = "\n".join(steps)
        draft.blanks["TO_INPUT"] = "\n" + textwrap.indent(fragment("to_input", draft.blanks), "    ")
    transfer = config.transfer or ""
    if LOADERS[config.loader or ""].decodes and transfer == "stream":
        transfer = "pinned"  # the images are on the device already: there is no copy to hide
    if transfer == "resident":
        transfer = "here"
    draft.names.append(f"transfer_{transfer}")
    given = "self.to_input({})" if steps else "{}"
    fill, copy = _copying(draft, buffers)
    draft.blanks |= {
        "NEW_TO_INPUT": NORMALISED_BY if any("self.mean" in step for step in steps) else "",
        "INPUT": given.format("images"),
        "INPUT_ON_DEVICE": given.format("on_device"),
        "BUFFERS_PARAMETER": ", buffers" if buffers else "",
        "KEEP_BUFFERS": "self.buffers = buffers" if buffers else "",
        "FILL": fill,
        "COPY": copy,
    }
    draft.opening.append(f"return OnDevice(loader, device{', buffers' if buffers else ''}), n_classes")


def _copying(draft: Draft, buffers: bool) -> tuple[str, str]:
    """Returns the lines for a batch before it is copied to the device, and those of the copy."""
    config = draft.config
    if buffers:
        fill = "images = self.buffers.filled(images)" if draft.copies_to_buffers else ""
        return fill, "on_device, labels = self.buffers.copied(images, labels)"
    if LOADERS[config.loader or ""].decodes:
        return "", f"{DECODED_THERE}\n{APART}"
    if config.loader == "dataloader" and config.pin_memory:
        return "", f"{PINNED_BY_LOADER}\n{APART}"
    return PINNED_EACH, APART


APART = """on_device = images.to(self.device, non_blocking=True)
labels = labels.to(self.device, non_blocking=True)"""
DECODED_THERE = "# A GPU has the images already: only labels are copied."
PINNED_BY_LOADER = """# Two copies, as the DataLoader has pinned them apart: joining them
# would take another copy of the images on the host."""
PINNED_EACH = """if self.device.type == "cuda":  # PyTorch reuses that memory
    images, labels = images.pin_memory(), labels.pin_memory()"""
FILLED = """
    def filled(self, images):
        \"\"\"Returns `images` in page-locked memory where there is a GPU to copy to.\"\"\"
        return self.take(len(images)).copy_(images) if self.pinned else images"""


NORMALISED_BY = """self.mean = torch.tensor(MEAN, device=device).view(1, -1, 1, 1)
self.std = torch.tensor(STD, device=device).view(1, -1, 1, 1)"""


def _steps(draft: Draft) -> list[str]:
    """Returns the lines for images on the device, with the arithmetic of `vitprof.engine.transfer.normalise`."""
    config, storage = draft.config, draft.config.storage
    normalised = storage in ("idx", "imagefolder")
    steps: list[str] = []
    if draft.form != "samples":
        steps += [
            "# uint8 until here: a quarter of the bytes to move, and cheap on the device",
            "images = images.permute(0, 3, 1, 2).float().div_(255)",
        ]
    if config.augment == "device":
        if normalised:
            steps.append("images = images * self.std + self.mean  # black is 0 again")
        steps.append("images = augment(images)")
        normalised = False
        jpeg = draft.info.kind == "jpeg"
        draft.blanks |= {
            "AUGMENT_WORDS": "Random crop, rotation and flip" if draft.info.flips else "Random shift and rotation",
            "AUGMENT_GEOMETRY": CROPPED if jpeg else SHIFTED,
            "AUGMENT_FLIP": "width = torch.where(u[5] < 0.5, -width, width)" if draft.info.flips else "",
        }
    if not normalised:
        steps.append("images = images.sub(self.mean).div_(self.std)")
    if config.image_size != draft.info.image_size:
        steps.append('images = F.interpolate(images, (INPUT_SIZE, INPUT_SIZE), mode="bilinear")')
    if config.transfer == "stream" and config.precision in AUTOCAST and steps:
        steps.append(f"images = images.to({AUTOCAST[config.precision]})")
    return steps


CROPPED = """area, ratio = 0.35 + 0.65 * u[1], (3 / 4) ** (1 - 2 * u[2])
width = (area * ratio).sqrt().clamp(max=1)
height = (area / ratio).sqrt().clamp(max=1)
x, y = (2 * u[3] - 1) * (1 - width), (2 * u[4] - 1) * (1 - height)"""
SHIFTED = """width, height = torch.ones_like(angle), torch.ones_like(angle)
reach = 2 * 2 / images.shape[-1]  # two pixels
x, y = (2 * u[3] - 1) * reach, (2 * u[4] - 1) * reach"""
