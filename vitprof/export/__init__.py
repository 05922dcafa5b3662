"""Exports: CSV, Parquet, JSON, an HTML report, a trace, TensorBoard's files. docs/formats.md describes them.

Modules that take long to import are imported where they are used: `vitprof.export.report`, `.trace`, `.tensorboard`.
"""

from vitprof.export.csv import summary_csv, write_steps_csv
from vitprof.export.objects import run_object, runs_json, write_runs_json
from vitprof.export.parquet import summary_parquet, write_steps_parquet
from vitprof.export.writing import new_file, write_bytes, write_text

__all__ = [
    "new_file",
    "run_object",
    "runs_json",
    "summary_csv",
    "summary_parquet",
    "write_bytes",
    "write_runs_json",
    "write_steps_csv",
    "write_steps_parquet",
    "write_text",
]
