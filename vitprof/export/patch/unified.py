"""A unified diff of bytes, as `patch` and `git apply` take it."""

import difflib
import io
import os

NO_LINE_END = b"\n\\ No newline at end of file\n"


def unified_diff(name: str, before: bytes, after: bytes) -> bytes:
    """Returns the diff of a file that is called `name` in both headers; empty where nothing differs.

    Bytes, as a script may be in any encoding. A line ends with LF alone, as in those programs: a
    form feed or a lone CR, at which `str.splitlines` cuts, is a character within a line.
    """
    header = os.fsencode(name)
    if " " in name:
        # without a tab behind it, a name is read up to its first space
        header += b"\t"
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(before), _lines(after), fromfile=header, tofile=header
    )
    return b"".join(line if line.endswith(b"\n") else line + NO_LINE_END for line in lines)


def _lines(data: bytes) -> list[bytes]:
    return io.BytesIO(data).readlines()
