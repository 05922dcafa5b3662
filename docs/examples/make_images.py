"""Writes 540 JPEG files of two classes to the folder `images`."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

random = np.random.default_rng(0)
for split, count in (("train", 480), ("val", 60)):
    for number in range(count):
        folder = Path("images", split, ("dog", "cat")[number % 2])
        folder.mkdir(parents=True, exist_ok=True)
        colours = random.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        image = Image.fromarray(colours).resize((640, 480), Image.Resampling.BICUBIC)
        image.filter(ImageFilter.SMOOTH).save(folder / f"{number:04}.jpg", quality=90)
