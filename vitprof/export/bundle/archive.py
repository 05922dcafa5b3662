"""The zip file around a bundle: written reproducibly, and opened as if its sender meant harm."""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

from vitprof import __version__
from vitprof.errors import VitprofError
from vitprof.export.bundle.values import check_texts
from vitprof.formats import size
from vitprof.store import STORE_VERSION

FORMAT, VERSION = "vitprof runs", 1
"""The version rises when this vitprof could not read what a newer one writes."""
SUFFIX = ".vitprof"
MANIFEST = "manifest.json"
MAX_RUNS = 1_000
MAX_FILE_BYTES = 192 * 2**20
"""Just under the 200 MB that Streamlit takes as an upload."""
MAX_UNPACKED_BYTES = 256 * 2**20
"""All members together: room for 1.3 million steps. They are held in memory until all are known to be sound."""
MAX_JSON_BYTES = 2**21
MAX_DIRECTORY_BYTES = 256 * MAX_RUNS
"""The zip's table of contents: under 70 bytes for each of three files a run. zipfile reads all of it at once."""
LEVEL = 1
"""Of deflate. Steps shrink to 0.27 of their size at level 1 as at level 6, in half of the time."""
END = struct.Struct("<4sHHHHLLH")
"""End of central directory record (PKWARE APPNOTE 4.3.16); a bundle has neither a comment nor the zip64 form."""
MEMBER = re.compile(r"(run-[1-9]\d{0,3}\.json|(steps|telemetry)-[1-9]\d{0,3}\.f64)")
SHA256 = re.compile(r"[0-9a-f]{64}")
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # an encrypted member
    LookupError,
    OverflowError,
    ValueError,
    OSError,
)
"""What zipfile raises on a file that is none, or a damaged one."""


class BundleError(VitprofError):
    """A bundle that cannot be written, or one that is refused; nothing of it was stored."""


def pack(members: Mapping[str, bytes], n_runs: int) -> bytes:
    """The file with `members` and their manifest. The same runs give the same bytes. Raises `BundleError`."""
    if n_runs > MAX_RUNS:
        raise BundleError(f"{n_runs:,} runs are too many for one file; export at most {MAX_RUNS:,} at a time")
    unpacked = sum(map(len, members.values()))
    if unpacked > MAX_UNPACKED_BYTES:
        raise BundleError(
            f"these runs take {size(unpacked)}, and a file may hold {size(MAX_UNPACKED_BYTES)}; export fewer at a time"
        )
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "vitprof": __version__,
        "store_version": STORE_VERSION,
        "n_runs": n_runs,
        "members": {n: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for n, data in members.items()},
    }
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in {MANIFEST: to_json(manifest), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, LEVEL)  # no time of writing in it
    if target.tell() > MAX_FILE_BYTES:
        raise BundleError(
            f"the file would have {size(target.tell())}, and {size(MAX_FILE_BYTES)} are allowed; export fewer at a time"
        )
    return target.getvalue()


def to_json(value: object) -> bytes:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def from_json(data: bytes, what: str) -> dict[str, Any]:
    """One JSON object of plain values: no NaN, no huge numbers, texts or nesting. Raises `BundleError`."""
    if len(data) > MAX_JSON_BYTES:
        raise BundleError(f"{what} has {size(len(data))}, and {size(MAX_JSON_BYTES)} are allowed")
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{what} is not JSON in UTF-8 as vitprof writes it") from error
    if not isinstance(value, dict):
        raise BundleError(f"{what} is not a JSON object")
    if wrong := check_texts(value):
        raise BundleError(f"{what}: {wrong}")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


class Archive:
    """A bundle that was opened: its table of contents is sound; members are checked as they are read."""

    def __init__(self, source: BinaryIO) -> None:
        """Raises `BundleError`."""
        try:
            _check_size(source)
            self._zip = zipfile.ZipFile(source)
            self._check_names()
            manifest = from_json(self._unpack(MANIFEST), MANIFEST)
        except DAMAGED as error:
            raise BundleError(_not_one()) from error
        if manifest.get("format") != FORMAT:
            raise BundleError(_not_one())
        if (version := manifest.get("version")) != VERSION or isinstance(version, bool):
            raise BundleError("it was written by another version of vitprof, in a form that this one does not know")
        self._members = _members(manifest)
        if set(self._members) | {MANIFEST} != set(self._zip.namelist()):
            raise BundleError("the files in it are not those that its manifest names")
        self.n_runs = len(self._members) // 3

    def _check_names(self) -> None:
        names = self._zip.namelist()
        if len(set(names)) < len(names) or MANIFEST not in names:
            raise BundleError(_not_one())
        infos = self._zip.infolist()
        if any(name != MANIFEST and not MEMBER.fullmatch(name) for name in names):
            raise BundleError("it holds files that do not belong into one")
        if any(i.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for i in infos):
            raise BundleError("it is packed in a way that vitprof does not write")
        if sum(i.file_size for i in infos) > MAX_UNPACKED_BYTES + MAX_JSON_BYTES:
            raise BundleError(f"it would unpack to more than the {size(MAX_UNPACKED_BYTES)} that are allowed")
        if any(i.file_size > MAX_JSON_BYTES for i in infos if i.filename.endswith(".json")):
            raise BundleError(f"a description in it has more than the {size(MAX_JSON_BYTES)} that are allowed")

    def _unpack(self, name: str) -> bytes:
        declared = self._zip.getinfo(name).file_size
        with self._zip.open(name) as member:
            data = member.read(declared + 1)  # zipfile itself stops at the declared size, and checks the CRC there
        if len(data) != declared:
            raise BundleError(f"{name} is damaged; copy the file again")
        return data

    def read(self, name: str) -> bytes:
        """A member whose size and hash are those of the manifest. Raises `BundleError`."""
        n_bytes, sha256 = self._members[name]
        try:
            data = self._unpack(name)
        except DAMAGED as error:
            raise BundleError(f"{name} is damaged; copy the file again") from error
        if len(data) != n_bytes or hashlib.sha256(data).hexdigest() != sha256:
            raise BundleError(f"{name} is not what was written; copy the file again")
        return data


def _not_one() -> str:
    return f"it is not a file of runs that vitprof wrote (*{SUFFIX}), or it is damaged"


def _check_size(source: BinaryIO) -> None:
    """That the file and its table of contents are small enough to be opened at all. Raises `BundleError`."""
    n = source.seek(0, io.SEEK_END)
    if n > MAX_FILE_BYTES:
        raise BundleError(f"it has {size(n)}, and {size(MAX_FILE_BYTES)} are allowed")
    source.seek(max(0, n - END.size))
    magic, disk, first, here, entries, directory, offset, comment = END.unpack(source.read())
    plain = magic == b"PK\x05\x06" and disk == first == comment == 0 and here == entries
    if not plain or offset + directory + END.size != n:  # zip64 has its own end record in between
        raise BundleError(_not_one())
    if entries > 3 * MAX_RUNS + 1 or directory > MAX_DIRECTORY_BYTES:
        raise BundleError(f"it holds more than the {MAX_RUNS:,} runs that are allowed")
    source.seek(0)


def _members(manifest: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Size and hash of the members by name, those of runs 1 to N and no others. Raises `BundleError`."""
    members, n = manifest.get("members"), manifest.get("n_runs")
    if not isinstance(members, dict) or not isinstance(n, int) or not 1 <= n <= MAX_RUNS:
        raise BundleError(f"its {MANIFEST} is not as vitprof writes it")
    wanted = {f"{kind}-{i}.{end}" for i in range(1, n + 1) for kind, end in KINDS}
    found = {}
    for name, about in members.items():
        if not isinstance(about, dict) or name not in wanted:
            raise BundleError(f"its {MANIFEST} is not as vitprof writes it")
        n_bytes, sha256 = about.get("bytes"), about.get("sha256")
        if not isinstance(n_bytes, int) or not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
            raise BundleError(f"its {MANIFEST} is not as vitprof writes it")
        found[name] = (n_bytes, sha256)
    if len(found) < len(wanted):
        raise BundleError("a part of a run is missing in it")
    return found


KINDS = (("run", "json"), ("steps", "f64"), ("telemetry", "f64"))
"""The files of each run."""
