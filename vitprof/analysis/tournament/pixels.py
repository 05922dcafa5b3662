"""Whether another library decodes the JPEG files of a user's own script to the same pixels as Pillow."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from vitprof import formats
from vitprof.recording.decoded_files import DecodedFiles

NAMES = tuple(field.name for field in fields(DecodedFiles))


def of_reports(lines: Iterable[str]) -> DecodedFiles:
    """Returns what the processes of a trial have reported (`watch.decoding.Decoding`): the last of each counts."""
    last: dict[int, DecodedFiles] = {}
    for line in lines:
        report = json.loads(line)
        last[report["pid"]] = of_facts(report)
    return together(last.values())


def of_facts(facts: Mapping[str, Any]) -> DecodedFiles:
    """Returns what a run's facts say."""
    return DecodedFiles(**{name: facts[name] for name in NAMES if name in facts})


def together(all_files: Iterable[DecodedFiles]) -> DecodedFiles:
    """Returns the files of several runs or processes as those of one."""
    known = list(all_files)
    return DecodedFiles(
        decoded=sum(files.decoded for files in known),
        stayed=sum(files.stayed for files in known),
        why=next((files.why for files in known if files.why), ""),
        compared=sum(files.compared for files in known),
        differ=sum(files.differ for files in known),
        largest=max((files.largest for files in known), default=0),
    )


def pixels_words(files: DecodedFiles) -> str:
    """Returns how the pixels compare with Pillow's: "same pixels as Pillow's in 40 files compared"; "" where none
    was decoded.
    """
    if not files.decoded:
        return ""
    compared = f"{formats.count(files.compared, 'JPEG file')} compared"
    if not files.compared:
        words = "its pixels were not compared with Pillow's"
    elif files.largest:
        words = (
            f"pixels differ by at most {files.largest} of 255 from Pillow's, in {files.differ:,} of "
            f"{compared}"
        )
    else:
        words = f"same pixels as Pillow's in {compared}"
    if files.stayed:
        stayed = formats.count(files.stayed, "JPEG file")
        words += f"; at least {stayed} stayed with Pillow, the first because {files.why}"
    return words


def why_refused(name: str, files: DecodedFiles) -> str:
    """Returns why the decoder `name` is no setting to use without a person's consent; "" where its pixels are
    Pillow's, as far as they were compared.
    """
    if not files.largest:
        return ""
    return (
        f"decoder={name} gives other pixels, which differ by up to {files.largest} of 255 from Pillow's in "
        f"{files.differ:,} of the {formats.count(files.compared, 'JPEG file')} compared so far, so the losses "
        "are not the script's: add --allow-other-pixels, or leave it out"
    )


def why_unused(name: str, files: DecodedFiles) -> str:
    """Returns why a trial of the decoder `name` was the script as it is; "" where it was not."""
    if files.decoded:
        return ""
    unused = f"decoder={name} decoded nothing, so this is the unchanged script"
    if files.stayed:
        stayed = formats.count(files.stayed, "JPEG file")
        return f"{unused}: at least {stayed} stayed with Pillow, the first because {files.why}"
    return (
        f"{unused}: it opened no JPEG file with Pillow while it was watched (torchvision.io and cv2 are left "
        "as they are)"
    )
