"""A package with parts of its own, as somebody else would write it: `tests/engine/test_plugins.py` installs it."""

from vitprof.config.parts import LoaderPart, Part, StoragePart
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


class Loader:  # any object may be in place of a module
    LOADER = LoaderPart("toy-loader", "Toy loader", forms=("pixels",))
    STRATEGIES = ()
    OPENER = "toy_reader:open_toy_loader"


class Transfer:
    TRANSFER = Part("toy-transfer", "Toy transfer")
    STRATEGIES = ()
    OPENER = "toy_reader:ToyTransfer"
