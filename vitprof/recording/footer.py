"""What the footer of a Parquet file says of its columns, read without Arrow.

`RowGroupMetaData.column` of pyarrow (26.0) lets an exception of C++ through, which ends the process by
SIGABRT: for sizes that contradict each other in a damaged file. The footer is a struct of Thrift in
its compact protocol (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md),
whose fields are in https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from typing import Any

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Length of the footer, in 4 bytes, and the magic."""
MAX_BYTES = 2**20
"""Of a footer. Those that vitprof writes have under 30 kB."""
MAX_DEPTH = 16
"""Structs and lists within each other; a footer has at most 6."""

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
"""Types of the compact protocol."""
ROW_GROUPS = 4
"""Field of FileMetaData."""
COLUMNS = 1
"""Field of RowGroup."""
META_DATA = 3
"""Field of ColumnChunk."""
CODEC = 4
"""Field of ColumnMetaData."""
UNCOMPRESSED = 0


def is_uncompressed(data: bytes) -> bool:
    """Returns whether no column of a file is compressed. Raises `ValueError` for a damaged one."""
    tail = data[-TAIL_BYTES:]
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > min(MAX_BYTES, len(data) - TAIL_BYTES):
        raise ValueError("it does not end with a footer")
    footer = _Compact(data[-TAIL_BYTES - length : -TAIL_BYTES]).struct()
    try:
        codecs = {
            column[META_DATA][CODEC] for group in footer[ROW_GROUPS] for column in group[COLUMNS]
        }
    except (LookupError, TypeError) as error:
        raise ValueError("its footer lacks what it has to say of a column") from error
    return codecs <= {UNCOMPRESSED}


class _Compact:
    """Values of Thrift's compact protocol, one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Returns the fields of a struct by their numbers. Raises `ValueError`."""
        if depth > MAX_DEPTH:
            raise ValueError("its footer is nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            delta = head >> 4
            # Without a delta the number itself follows.
            number = number + delta if delta else self._zigzag()
            kind = head & 0x0F
            if kind in (TRUE, FALSE):
                fields[number] = kind == TRUE
            else:
                fields[number] = self._value(kind, depth + 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE, BYTE):
            return self._byte()
        if kind in (I16, I32, I64):
            return self._zigzag()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in (LIST, SET):
            return self._list(depth)
        if kind == STRUCT:
            return self.struct(depth)
        # Parquet has no maps.
        raise ValueError("its footer has a value of an unknown type")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        n = head >> 4
        if n == 15:
            n = self._varint()
        if depth > MAX_DEPTH or n > len(self._data) - self._at:
            raise ValueError("its footer has a list of more than there is")
        return [self._value(head & 0x0F, depth + 1) for _ in range(n)]

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            part = self._byte()
            value |= (part & 0x7F) << shift
            if part < 0x80:
                return value
        raise ValueError("its footer has a number without an end")

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, n: int) -> bytes:
        part = self._data[self._at : self._at + n]
        if len(part) != n:
            raise ValueError("its footer ends in the middle of a value")
        self._at += n
        return part
