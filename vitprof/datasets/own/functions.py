"""Data sets that a function of the user's own makes."""

from typing import Any

from vitprof import errors
from vitprof.datasets.own.listing import Listing, listing_of
from vitprof.datasets.own.specs import Spec, function_of, wrong
from vitprof.forms.contract import Found
from vitprof.forms.gate import Gate
from vitprof.forms.image_files import png_of


def python_set(text: str, spec: Spec, gate: Gate) -> Listing:
    """Calls a user's function, which returns a map-style data set of (image, label)."""
    name = spec.options["function"]
    try:
        made = function_of(f"{spec.path}:{name}")()
    except (errors.VitprofError, ImportError):
        raise
    except Exception as error:  # it is a user's code
        raise wrong(text, f"its code failed: {errors.one_line(error)}") from error
    if not hasattr(made, "__len__") or not hasattr(made, "__getitem__"):
        raise wrong(
            text,
            f"{name}() returns {type(made).__name__}, which has no length or no samples by number",
        )
    transforms = [
        part for part in ("transform", "transforms") if getattr(made, part, None) is not None
    ]
    for part in transforms:
        setattr(made, part, None)
    notes = []
    if transforms:
        notes.append(f"its {transforms[0]} is left out: vitprof crops and normalises")
    # torchvision's data sets have `targets`; others are asked for each sample.
    labels = getattr(made, "targets", None)
    if labels is None:
        labels = [made[at][1] for at in range(len(made))]
    samples = [("", str(_plain(label)), at) for at, label in enumerate(labels)]
    return listing_of(Found(samples, lambda at: png_of(made[at][0]), notes), gate)


def _plain(label: Any) -> Any:
    """Returns a label as Python's number where it is a tensor's or an array's."""
    return label.item() if hasattr(label, "item") else label
