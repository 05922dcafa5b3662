"""Runs as one file that another machine can import: `NAME.vitprof`.

A bundle is a zip file (deflated) of

- `manifest.json`: `format`, `version`, the vitprof and the store version that wrote it, the number of runs, and
  `members`: size and SHA-256 of every other file in it;
- `run-N.json` for N = 1, 2, ...: one run as plain values, see `vitprof.export.bundle.run_values`;
- `steps-N.f64` and `telemetry-N.f64`: its series, column after column in the order that `run-N.json` names, each
  little-endian float64. Nothing in them has to be parsed: `numpy.fromfile(path, "<f8").reshape(len(columns), -1)`.

The sender of a bundle is not trusted: everything is checked before anything is stored, and then all of it is stored in
one transaction, or nothing. The verdict is judged again from the steps, for this machine.
"""

from vitprof.export.bundle.archive import MAX_FILE_BYTES, SUFFIX
from vitprof.export.bundle.exporting import bundle_bytes, write_bundle
from vitprof.export.bundle.importing import Imported, ImportedRun, RunInFile, import_bundle, read_bundle
from vitprof.export.bundle.values import BundleError

__all__ = [
    "MAX_FILE_BYTES",
    "SUFFIX",
    "BundleError",
    "Imported",
    "ImportedRun",
    "RunInFile",
    "bundle_bytes",
    "import_bundle",
    "read_bundle",
    "write_bundle",
]
