"""Data sets whose samples are image files: class folders, and tables of paths and labels."""

import codecs
import csv
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TextIO

from vitprof.datasets.own.listing import Listing, listing_of
from vitprof.datasets.own.specs import Spec, is_remote, wrong
from vitprof.forms import folder
from vitprof.forms.contract import Refuse
from vitprof.forms.gate import Gate
from vitprof.forms.tables import LABEL, column, path_column, paths_in

MOST_LINE = 1 << 20
"""Characters of a line of a table. A file without line ends would be read as a whole."""
BYTE_ORDER_MARKS = {
    # That of UTF-32 begins as that of UTF-16 does.
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""How a table begins in another encoding than UTF-8. Spreadsheets write "Unicode text" so."""
FIRST_BYTES = 4096
"""Bytes that tell the encoding of a table."""


def folder_set(text: str, spec: Spec, gate: Gate) -> Listing:
    def refuse(why: str) -> NoReturn:
        raise wrong(text, why)

    if is_remote(spec.path):
        return listing_of(folder.find_remote(spec.path, refuse), gate)
    return listing_of(folder.find(spec.path, spec.options, refuse, gate), gate)


def csv_set(text: str, spec: Spec, gate: Gate) -> Listing:
    def refuse(why: str) -> NoReturn:
        raise wrong(text, why)

    encoding = _encoding_of(spec.path, refuse)
    with open(spec.path, newline="", encoding=encoding) as file:
        try:
            delimiter = max(",;\t", key=file.readline(MOST_LINE).count)
            file.seek(0)
            reader = csv.DictReader(_lines(file), delimiter=delimiter)
            names = list(reader.fieldnames or ())
            path = path_column(names, spec.options, refuse)
            label = column("label", LABEL, names, spec.options, refuse)
            rows = ((row[path.name], row[label]) for row in reader)
            return listing_of(paths_in(Path(spec.path).parent, path, rows, gate), gate)
        except csv.Error as error:
            refuse(f"line {reader.line_num + 1:,} is not as in a table ({error})")
        except UnicodeError:
            refuse(_not_in(encoding, spec.path))


def _encoding_of(path: str, refuse: Refuse) -> str:
    """Returns the encoding of a table, by its first bytes. Raises what `refuse` does for UTF-16 that
    does not say so, which can be read as UTF-8 with a NUL beside each letter.
    """
    with open(path, "rb") as file:
        first = file.read(FIRST_BYTES)
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if first.startswith(mark):
            return encoding
    # Of letters that ASCII has, the upper byte is 0.
    for upper, lower, encoding in ((1, 0, "UTF-16LE"), (0, 1, "UTF-16BE")):
        if 0 not in first[lower::2] and 2 * first[upper::2].count(0) > len(first) // 2:
            refuse(f"it is {encoding} without a byte order mark; {_to_convert(encoding, path)}")
    # utf-8-sig: spreadsheets write a byte order mark in front of the first column's name.
    return "utf-8-sig"


def _not_in(encoding: str, path: str) -> str:
    """Returns why a table cannot be read, which is not in `encoding` to its end."""
    if encoding != "utf-8-sig":
        return f"it begins as {encoding.upper()} and does not go on so: it is damaged, or cut short"
    return f"it is not text in UTF-8; {_to_convert('WINDOWS-1252', path)} (or its other encoding)"


def _to_convert(encoding: str, path: str) -> str:
    converted = Path(path).with_suffix(".utf8.csv")
    files = f"{shlex.quote(path)} > {shlex.quote(str(converted))}"
    return f"to convert it: iconv -f {encoding} -t UTF-8 {files}"


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(MOST_LINE):
        if len(line) == MOST_LINE:
            raise ValueError(f"a line has more than {MOST_LINE:,} characters")
        yield line
