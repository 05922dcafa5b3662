"""What commands print as JSON, read as a program would: strictly, and by the schema that vitprof prints of it."""

import functools
import json
from typing import Any

import jsonschema
import pytest

from vitprof.cli.schema import PRINTED
from vitprof.recording import codec


@functools.cache
def schema(name: str) -> dict[str, Any]:
    return codec.schema(PRINTED[name][0], name)


def told(name: str, text: str) -> Any:
    """Returns the object that `text` is; fails where it is not as the schema `name` says."""
    value = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    errors = jsonschema.Draft202012Validator(schema(name)).iter_errors(value)
    wrong = [f"{error.json_path}: {error.message}" for error in errors]
    assert not wrong, wrong
    return value


def not_described(name: str, run: Any) -> set[str]:
    """Returns facts of a run, and of its machine, that its schema allows without describing them."""
    known = {
        "environment": schema(name)["$defs"]["Environment"],
        "facts": schema(name)["$defs"]["Facts"],
    }
    return {
        fact for part, one in known.items() for fact in run[part].keys() - one["properties"].keys()
    }
