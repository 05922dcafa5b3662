"""What leaves vitprof: CSV, Parquet, JSON, an HTML report, a trace, TensorBoard's files. docs/formats.md tells them.

What takes long to import is imported where it is used: `vitprof.export.report`, `.trace`, `.tensorboard`.
"""

from vitprof.export.csv import steps_csv, summary_csv
from vitprof.export.objects import run_object, runs_json
from vitprof.export.parquet import steps_parquet, summary_parquet
from vitprof.export.writing import write_bytes, write_text

__all__ = [
    "run_object",
    "runs_json",
    "steps_csv",
    "steps_parquet",
    "summary_csv",
    "summary_parquet",
    "write_bytes",
    "write_text",
]
