"""Parts that need another library, through the entry points that other packages use (`vitprof.config.plugins`)."""

from vitprof.config.parts import DECODING, ENCODED_JPEG, LoaderPart, StoragePart
from vitprof.config.strategies import Strategy

STORAGE = StoragePart(
    "litdata",
    "LitData chunks",
    access="mapping",
    packages=("litdata",),
    in_form="litdata",
    **ENCODED_JPEG,
)
STRATEGIES = (
    Strategy(
        name="litdata",
        title="LitData",
        what="JPEG files in LitData's chunks. Read in the order of all strategies, not in StreamingDataset's.",
        when="Data that are in LitData's chunks anyway, as LitData streams those from object storage.",
        costs="The package litdata; disk: the size of the JPEG files, written once.",
        origin="LitData, a library of Lightning AI that streams data in chunks",
        storage="litdata",
        loader="threads",
    ),
)
OPENER = "vitprof.engine.storage.in_forms:EncodedImages"
FORMAT = "vitprof.engine.storage.in_forms:format_in"


class Spdl:
    LOADER = LoaderPart("spdl", "SPDL pipeline", packages=("spdl",), **DECODING)
    STRATEGIES = (
        Strategy(
            name="spdl",
            title="SPDL",
            what="A pipeline of Meta's SPDL for each epoch. Its threads read, decode and crop, a whole batch each.",
            when="To compare SPDL with 'threads', which splits a batch among its threads.",
            costs="The package spdl; CPU cores, memory for each batch kept ready, up to 0.1 s at the end of an epoch.",
            origin="SPDL, a library of Meta that loads with threads",
            loader="spdl",
        ),
    )
    OPENER = "vitprof.engine.loaders.spdl_pipeline:SpdlLoader"
