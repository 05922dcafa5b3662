"""How a reader of our CSV files takes them, as docs/formats.md tells it."""

import csv
import io
from pathlib import Path


def csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8"), newline="")))


def read_csv_text(cell: str) -> str:
    """Returns a text cell as it was before it was made harmless."""
    return cell[1:] if cell.startswith("'") else cell
