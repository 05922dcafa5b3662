"""A package with a storage of its own, as somebody else would write it: `tests/engine/test_plugins.py` installs it."""

from vitprof.config.parts import StoragePart
from vitprof.config.strategies import Strategy

STORAGE = StoragePart("toy", "Toy file")
STRATEGIES = (
    Strategy(
        name="toy",
        title="Toy file",
        what="What it does. In two sentences.",
        when="Only in this test, never for real data.",
        costs="One file of the size of all pixels.",
        origin="tests/plugin",
        storage="toy",
        loader="ahead",
        transfer="pinned",
    ),
)
OPENER, FORMAT = "toy_reader:ToyStorage", "toy_reader:FORMAT"
