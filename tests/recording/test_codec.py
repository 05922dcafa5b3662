"""Values of a recording as plain ones, and back."""

import json
import math

import pytest

from vitprof.recording import codec
from vitprof.recording.columns import RunSummary
from vitprof.recording.verdict import Share, Verdict

VERDICT = Verdict(kind="input-bound", sentence="So it is.", simulated=True, shares=(Share("read", math.inf, 4.0, 1.0),))


def test_what_is_not_known_is_null_and_comes_back_as_nan() -> None:
    plain = codec.to_plain(VERDICT)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain["idle_frac"], plain["shares"][0]["frac"], plain["shares"][0]["own_ms"]) == (None, None, 1.0)
    back = codec.from_plain(Verdict, plain)
    assert math.isnan(back.idle_frac)
    assert math.isnan(back.shares[0].frac)
    assert codec.to_plain(back) == plain


def test_values_of_other_versions_and_types() -> None:
    back = codec.from_plain(RunSummary, {"n_steps": 3, "joules": 2.5})
    assert (back.n_steps, math.isnan(back.samples_per_s)) == (3, True)
    with pytest.raises(ValueError, match="idle_frac") as caught:
        codec.from_plain(Verdict, codec.to_plain(VERDICT) | {"idle_frac": "much"})
    assert codec.first_error(caught.value).startswith("idle_frac: Input should be a valid number")
    schema = codec.schema(RunSummary, "figures")
    assert schema["properties"]["n_steps"] == {"type": "integer", "description": "number of steps recorded"}
    assert schema["properties"]["epoch_s"]["type"] == ["number", "null"]
    assert schema["required"] == list(schema["properties"])
