"""What a terminal sends for a key, whole or in pieces."""

import pytest

from vitprof.cli.top.keys import split


@pytest.mark.parametrize(
    ("data", "keys", "begun"),
    [
        (b"q", ["quit"], b""),
        (b"sS\r\n", ["sort", "sort", "enter", "enter"], b""),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"], b""),
        (b"\x1b[5~\x1b[6~", ["page up", "page down"], b""),
        (b"\x1b", [], b"\x1b"),
        (b"q\x1b[", ["quit"], b"\x1b["),
        (b"\x1bO", [], b"\x1bO"),
        (b"\x1b\x1b[B", ["escape", "down"], b""),
        (b"\x1bq", ["escape", "quit"], b""),
        # what means nothing: a mouse, a function key, a letter of two bytes
        (b"\x1b[<0;10;10Ms", ["", "sort"], b""),
        (b"\x1b[15~x", ["", ""], b""),
        ("ü".encode(), ["", ""], b""),
        (b"\x1b[" + b"1;" * 20, [""] + [""] * 26, b""),
    ],
)
def test_keys_are_told_apart(data: bytes, keys: list[str], begun: bytes) -> None:
    assert split(data) == (keys, begun)


def test_a_key_that_comes_in_pieces_is_one_key() -> None:
    keys, begun = split(b"\x1b")
    assert keys == []
    assert split(begun + b"[") == ([], b"\x1b[")
    assert split(begun + b"[A") == (["up"], b"")
