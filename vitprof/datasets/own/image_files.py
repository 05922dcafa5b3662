"""Data sets whose samples are image files: class folders, and tables of paths and labels."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TextIO

from vitprof.datasets.own.listing import Listing, listing_of
from vitprof.datasets.own.specs import Spec, is_remote, wrong
from vitprof.forms import folder
from vitprof.forms.gate import Gate
from vitprof.forms.tables import LABEL, column, path_column, paths_in

MOST_LINE = 1 << 20
"""Characters of a line of a table. A file without line ends would be read as a whole."""


def folder_set(text: str, spec: Spec, gate: Gate) -> Listing:
    def refuse(why: str) -> NoReturn:
        raise wrong(text, why)

    if is_remote(spec.path):
        return listing_of(folder.find_remote(spec.path, refuse), gate)
    return listing_of(folder.find(spec.path, spec.options, refuse, gate), gate)


def csv_set(text: str, spec: Spec, gate: Gate) -> Listing:
    def refuse(why: str) -> NoReturn:
        raise wrong(text, why)

    # utf-8-sig: spreadsheets write a byte order mark in front of the first column's name.
    with open(spec.path, newline="", encoding="utf-8-sig") as file:
        delimiter = max(",;\t", key=file.readline(MOST_LINE).count)
        file.seek(0)
        reader = csv.DictReader(_lines(file), delimiter=delimiter)
        try:
            names = list(reader.fieldnames or ())
            path = path_column(names, spec.options, refuse)
            label = column("label", LABEL, names, spec.options, refuse)
            rows = ((row[path.name], row[label]) for row in reader)
            return listing_of(paths_in(Path(spec.path).parent, path, rows, gate), gate)
        except csv.Error as error:
            refuse(f"line {reader.line_num + 1:,} is not as in a table ({error})")


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(MOST_LINE):
        if len(line) == MOST_LINE:
            raise ValueError(f"a line has more than {MOST_LINE:,} characters")
        yield line
