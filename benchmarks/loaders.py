"""Compares every loading strategy with what the machine can do: all gates in one table.

    python -m benchmarks.loaders [--rounds 5] [--csv FILE] [--photos 600] [--only NAME ...]

R is a one-thread gather of the same rows in C, which is compiled here; J is libturbojpeg's decode of the same files
through simplejpeg. Each trial runs beside its reference, in slices, torch on one thread, with a warm page cache; a
figure is the median of the rounds' ratios. Prepares what it needs under VITPROF_HOME, as a job does. A missed gate is
printed as missed; the exit status is still 0. With --csv, FILE-rounds.csv gets both sides of every round.
"""

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import loader_gpu
from benchmarks.loader_cases import CASES
from benchmarks.measuring import Row, Settings, measure
from vitprof.datasets.catalog import dataset_info
from vitprof.errors import VitprofError, one_line

COLUMNS = ("name", "row", "asked", "measured", "low", "high", "n", "clock", "gate", "note")
ROUND_COLUMNS = ("name", "round", "ratio", "side", "units", "unit", "wall_s", "cpu_s")
NAMES = (*(case.name for case in CASES), *loader_gpu.ROWS)


def main(arguments: Sequence[str] | None = None) -> None:
    defaults = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=defaults.rounds)
    parser.add_argument(
        "--seconds", type=float, default=defaults.seconds, help="for each side, in each round"
    )
    parser.add_argument(
        "--batch-size", type=int, default=defaults.batch_size, help="of the loaders over digits"
    )
    parser.add_argument(
        "--photos", type=int, default=defaults.photos, help="training images of photos"
    )
    parser.add_argument("--staged-mb", type=int, default=defaults.staged_mb, help="MB to copy")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args(arguments)
    settings = Settings(
        given.rounds, given.seconds, given.batch_size, given.photos, given.staged_mb
    )
    chosen = given.only or NAMES
    rows = []
    for case in CASES:
        if case.name in chosen:
            print(f"{case.title} ...", file=sys.stderr)
            try:
                rows.append(measure(case, settings))
            except VitprofError as error:
                rows.append(
                    Row(
                        case.name,
                        case.title,
                        case.at_least,
                        case.at_most,
                        note=f"failed: {one_line(error)}",
                    )
                )
    rows += loader_gpu.rows([name for name in loader_gpu.ROWS if name in chosen], settings)
    print_table(rows)
    print_references(rows)
    if given.csv:
        write_csv(given.csv, COLUMNS, map(cells, rows))
        write_csv(
            given.csv.with_name(f"{given.csv.stem}-rounds.csv"), ROUND_COLUMNS, round_cells(rows)
        )


def gate(row: Row) -> str:
    if row.disturbed:
        return "disturbed"
    if row.met is None:
        return "" if row.ratios else "not seen"
    return "met" if row.met else "MISSED"


def cells(row: Row) -> tuple[object, ...]:
    """Returns the row in the order of `COLUMNS`."""
    spread = (row.median, min(row.ratios), max(row.ratios)) if row.ratios else ("", "", "")
    return (
        row.name,
        row.title,
        row.asked,
        *spread,
        len(row.ratios),
        row.clock,
        gate(row),
        row.note,
    )


def round_cells(rows: Iterable[Row]) -> Iterable[tuple[object, ...]]:
    """Yields each side of each round, in the order of `ROUND_COLUMNS`."""
    for row in rows:
        for number, (sides, ratio) in enumerate(zip(row.rounds, row.ratios, strict=True)):
            for side, work in sides.items():
                yield row.name, number, ratio, side, work.units, row.units, work.wall_s, work.cpu_s


def print_table(rows: Iterable[Row]) -> None:
    print("| strategy | asked | measured | range | n | clock | gate |")
    print("|---" * 7 + "|")
    for row in rows:
        measured = (
            f"{row.median:.3g} | {min(row.ratios):.3g} to {max(row.ratios):.3g}"
            if row.ratios
            else " | "
        )
        told = ": ".join(filter(None, (gate(row), row.note)))
        print(
            f"| {row.title} | {row.asked} | {measured} | {len(row.ratios) or ''} | {row.clock} | {told} |"
        )


def print_references(rows: Sequence[Row]) -> None:
    """Prints the speeds of R and J, so that ratios can be turned into speeds."""
    info = dataset_info("digits")
    image_bytes = info.image_size**2 * info.channels
    for name, factor, unit in (
        ("R", image_bytes / 1e9, "GB/s"),
        ("J", 1.0, "images/s for each core"),
    ):
        speeds = [
            sides[name].rate("cpu") * factor
            for row in rows
            for sides in row.rounds
            if name in sides
        ]
        if speeds:
            spread = f"{min(speeds):,.3g} to {max(speeds):,.3g}, n = {len(speeds)}"
            print(f"\n{name}: {statistics.median(speeds):,.3g} {unit} ({spread})")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
