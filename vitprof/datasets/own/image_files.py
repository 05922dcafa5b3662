"""Data sets whose samples are image files: class folders, and tables of paths and labels."""

import csv
from pathlib import Path
from typing import NoReturn

from vitprof.datasets.own.listing import Listing, listing_of
from vitprof.datasets.own.specs import Spec, is_remote, wrong
from vitprof.forms import folder
from vitprof.forms.tables import LABEL, PATH, column, paths_in


def folder_set(text: str, spec: Spec) -> Listing:
    def refuse(why: str) -> NoReturn:
        raise wrong(text, why)

    if is_remote(spec.path):
        return listing_of(folder.find_remote(spec.path, refuse))
    return listing_of(folder.find(spec.path, spec.options, refuse))


def csv_set(text: str, spec: Spec) -> Listing:
    def refuse(why: str) -> NoReturn:
        raise wrong(text, why)

    # utf-8-sig: spreadsheets write a byte order mark in front of the first column's name.
    with open(spec.path, newline="", encoding="utf-8-sig") as file:
        delimiter = max(",;\t", key=file.readline().count)
        file.seek(0)
        reader = csv.DictReader(file, delimiter=delimiter)
        names = list(reader.fieldnames or ())
        path = column("path", PATH, names, spec.options, refuse)
        label = column("label", LABEL, names, spec.options, refuse)
        rows = ((row[path], row[label]) for row in reader)
        return listing_of(paths_in(Path(spec.path).parent, rows))
