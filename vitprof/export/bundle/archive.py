"""The zip file around a bundle: written reproducibly, and read as if its sender meant harm."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

from vitprof import __version__
from vitprof.export.bundle.values import BundleError, fits, from_json, need, to_json
from vitprof.formats import size
from vitprof.store import STORE_VERSION

FORMAT, VERSION = "vitprof runs", 1
"""The version rises when an older vitprof could not read what a newer one writes."""
SUFFIX, MANIFEST = ".vitprof", "manifest.json"
MAX_RUNS = 1_000
MAX_FILE_BYTES = 192 * 2**20
"""Just under the 200 MB that Streamlit takes as an upload."""
MAX_UNPACKED_BYTES = 256 * 2**20
"""The most bytes of all members together: 1.3 million steps. They are in memory until all of them are checked."""
MAX_JSON_BYTES = 2**21
MAX_READ_BYTES = 2**18
"""The most bytes that zipfile may read at once. It reads the table of contents whole: under 70 bytes for each file of a
run."""
COMPRESSION_LEVEL = 1
"""The level of deflate. Steps shrink to 0.27 of their size at level 1 as at level 6, in half of the time."""
START, END, END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22
"""A bundle begins with its first member, and ends with zip's end record without a comment."""
DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(RuntimeError, LookupError, ArithmeticError, ValueError),
)
"""What zipfile raises for a file that is no zip file, for a damaged one, and for an encrypted member."""
NOT_A_BUNDLE = f"it is not a file of runs that vitprof wrote (*{SUFFIX}), or it is damaged"
EXPORT_FEWER = "export fewer at a time"
TOO_MANY_RUNS = f"it holds more than the {MAX_RUNS:,} runs that are allowed"


def member_names(number: int) -> tuple[str, str, str]:
    """Returns the names of a run's description, steps and telemetry."""
    return f"run-{number}.json", f"steps-{number}.f64", f"telemetry-{number}.f64"


def pack(members: Mapping[str, bytes], n_runs: int) -> bytes:
    """Returns the file with `members` and their manifest. The same runs give the same bytes. Raises `BundleError`."""
    unpacked = sum(map(len, members.values()))
    allowed = f"; a file may hold {MAX_RUNS:,} runs and {size(MAX_UNPACKED_BYTES)}; {EXPORT_FEWER}"
    need(n_runs <= MAX_RUNS and unpacked <= MAX_UNPACKED_BYTES, f"{n_runs:,} run(s) take {size(unpacked)}{allowed}")
    manifest = {"format": FORMAT, "version": VERSION, "vitprof": __version__, "store_version": STORE_VERSION}
    manifest |= {"n_runs": n_runs, "members": {name: _fingerprint(data) for name, data in members.items()}}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in {MANIFEST: to_json(manifest), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, COMPRESSION_LEVEL)  # no time in it
    packed = target.tell()
    need(packed <= MAX_FILE_BYTES, f"it would have {size(packed)} of at most {size(MAX_FILE_BYTES)}; {EXPORT_FEWER}")
    return target.getvalue()


def unpack(source: BinaryIO) -> dict[str, bytes]:
    """Returns the members of runs 1 to N, whose sizes and hashes are as the manifest says. Raises `BundleError`."""
    n_bytes = source.seek(0, io.SEEK_END)
    need(n_bytes <= MAX_FILE_BYTES, f"it has {size(n_bytes)}, and {size(MAX_FILE_BYTES)} are allowed")
    try:
        members = _members(source, n_bytes)
        manifest = from_json(members.pop(MANIFEST), MANIFEST)
    except DAMAGED as error:
        raise BundleError(NOT_A_BUNDLE) from error
    need(manifest.get("format") == FORMAT, NOT_A_BUNDLE)
    known = fits(manifest.get("version"), int) and manifest["version"] == VERSION
    need(known, "it was written by another version of vitprof, in a form that this one does not know")
    n_runs, told = manifest.get("n_runs"), manifest.get("members")
    if not isinstance(told, dict) or not isinstance(n_runs, int) or not 1 <= n_runs <= MAX_RUNS:
        raise BundleError(f"its {MANIFEST} is not as vitprof writes it")
    wanted = {name for number in range(1, n_runs + 1) for name in member_names(number)}
    need(wanted <= set(told), "a part of a run is missing in it")
    need(set(members) == set(told) == wanted, "the files in it are not those that its manifest names and runs have")
    for name, data in members.items():
        need(told[name] == _fingerprint(data), f"{name} is not what was written; copy the file again")
    return members


class _BoundedReader:
    """A file for zipfile that refuses to read too much at once, whatever sizes the archive claims."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.seek, self.tell, self.seekable = source.seek, source.tell, source.seekable

    def read(self, n: int = -1, /) -> bytes:
        need(n <= MAX_READ_BYTES, TOO_MANY_RUNS)
        return self._source.read(n if n >= 0 else MAX_READ_BYTES)


def _members(source: BinaryIO, n_bytes: int) -> dict[str, bytes]:
    """Returns everything in a zip file. Raises `BundleError`, or one of `DAMAGED`."""
    for at, magic in ((0, START), (max(0, n_bytes - END_BYTES), END)):
        source.seek(at)
        need(source.read(len(magic)) == magic, NOT_A_BUNDLE)
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(_BoundedReader(source)) as archive:
        infos = archive.infolist()
        need(len(infos) <= 1 + 3 * MAX_RUNS, TOO_MANY_RUNS)
        need(len({info.filename for info in infos}) == len(infos), NOT_A_BUNDLE)
        ways = {info.compress_type for info in infos}  # only for these two zipfile bounds what it unpacks at once
        need(ways <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}, "it is packed in a way that vitprof does not write")
        left = MAX_UNPACKED_BYTES + MAX_JSON_BYTES  # the manifest comes on top
        for info in infos:
            members[info.filename] = _member(archive, info, left)
            left -= len(members[info.filename])
    return members


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, left: int) -> bytes:
    """Returns a member's bytes. Raises `BundleError` as soon as they grow too large, whatever its header says."""
    allowed = MAX_JSON_BYTES if info.filename.endswith(".json") else MAX_UNPACKED_BYTES
    data = bytearray()
    with archive.open(info) as member:
        while part := member.read(MAX_READ_BYTES):
            data += part
            too_large = len(data) > min(allowed, left)
            need(not too_large, f"{info.filename} would unpack to more than the {size(allowed)} that are allowed")
    return bytes(data)


def _fingerprint(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
