"""Damaged copies of small good files, given to each reader of own data and of bundles.

    python -m benchmarks.fuzz_readers [--mutations 10000] [--readers lmdb csv] [--seed 1]

Each copy is changed by a few seeded mutations: bits flipped, numbers overwritten, the file cut, parts
of it moved, repeated or taken out. The columns of the table are copies; how many were read, and
refused in one line; those in which an exception was the message, that took over 5 s of CPU time, or over
1 GB of memory, of which there should be none; how many ended the process by a signal, which only a look
within bounds survives (`vitprof.datasets.own.bounded`); the slowest copy, and the most memory over
the first. A copy that failed is kept under --keep.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import struct
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitprof.errors import ConfigError, VitprofError

MOST_S = 5.0
"""CPU time for a copy, with that of the processes that it is read in: the machine may be busy."""
MOST_WAIT_S = 60.0
MOST_BYTES = 1 << 30
N_IMAGES = 12
HEADER_BYTES = 512
"""Half of the mutations are in so many bytes at the begin or the end: numbers are there."""
NUMBERS = (0, 1, -1, 127, 255, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    10**30,
    1e308,
    "",
    "x\ny",
    "9" * 5000,
    [],
    [1],
    {},
    {"a": []},
)
"""What a value of JSON is replaced by."""
DEFECTS = re.compile(
    r"\((AttributeError|TypeError|KeyError|IndexError|NameError|AssertionError|RecursionError|"
    r"UnboundLocalError|OverflowError)\b"
)
"""Of a line that only passes on what Python raised: nobody foresaw it."""


# good files


def image_file(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 48, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")[seed % 6])
    return file.getvalue()


def make_folder(top: Path) -> str:
    for at in range(N_IMAGES):
        path = top / "images" / f"c{at % 3}" / f"{at}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_file(at))
    return f"folder:{top}/images"


def make_csv(top: Path) -> str:
    make_folder(top.parent / "of the table")
    rows = [f'"../of the table/images/c{at % 3}/{at}.jpg",{at % 3}' for at in range(N_IMAGES)]
    (top / "t.csv").write_text("\n".join(["path,label", *rows]))
    return f"csv:{top}/t.csv"


def make_parquet(top: Path) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    cells = [image_file(at) for at in range(N_IMAGES)]
    table = pa.table({"image": cells, "label": [at % 3 for at in range(N_IMAGES)]})
    parquet.write_table(table, top / "t.parquet", row_group_size=5)
    return f"parquet:{top}/t.parquet"


def make_hdf5(top: Path) -> str:
    import h5py

    with h5py.File(top / "t.h5", "w") as file:
        pixels = np.random.default_rng(0).integers(0, 255, (N_IMAGES, 8, 8, 3), np.uint8)
        file.create_dataset("images", data=pixels, chunks=(5, 8, 8, 3), compression="gzip")
        file["labels"] = np.arange(N_IMAGES) % 3
    return f"hdf5:{top}/t.h5"


def make_lmdb(top: Path) -> str:
    import lmdb

    with (
        lmdb.open(f"{top}/l", map_size=1 << 20) as store,
        store.begin(write=True) as transaction,
    ):
        for at in range(N_IMAGES):
            # One beyond a page, and one within.
            image = image_file(at)[: 1000 + 9000 * (at % 2)]
            transaction.put(f"{at % 3}/{at}".encode(), image)
    Path(f"{top}/l/lock.mdb").unlink()
    return f"lmdb:{top}/l"


def make_webdataset(top: Path) -> str:
    with tarfile.open(top / "t.tar", "w") as file:
        for at in range(N_IMAGES):
            label = (f"{at}.cls", b"1") if at % 2 else (f"{at}.json", b'{"label": 2}')
            for name, data in ((f"{at}.jpg", image_file(at)), label):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    return f"webdataset:{top}/t.tar"


def make_stored(form: str, top: Path) -> str:
    """Writes what `convert` does, without PyTorch: a part, and its description."""
    from vitprof.forms import module_of
    from vitprof.forms.description import Description, part_of

    part_of(top, 0).mkdir()
    names = ["0.jpg", "1"]
    writer = module_of(form).Writer(part_of(top, 0), names)
    for at in range(N_IMAGES):
        writer.add([image_file(0), str(at % 3).encode()])
    writer.finish()
    writer.close()
    Description(N_IMAGES, 4096, ["file RGB", "int"], names, 0, "(0, 1)", "").write(top)
    return f"{form}:{top}"


def make_bundle(top: Path) -> str:
    """Writes a bundle of two runs, one on a data set of the user's."""
    from vitprof.config import RunConfig
    from vitprof.datasets.own.registry import OwnSet, guests, introduce
    from vitprof.recording.archive import pack
    from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS, Phase, RunSummary
    from vitprof.recording.recording import Recording
    from vitprof.recording.verdict import Verdict

    n = 60
    steps = {name: np.full(n, np.nan) for name in STEP_COLUMNS}
    steps |= {name: np.zeros(n) for name in ("rank", "epoch", "warmup")}
    steps |= {"step": np.arange(n) * 1.0, "samples": np.full(n, 8.0)}
    steps |= {"t_start_s": 100 + np.arange(n) * 0.02, "step_s": np.full(n, 0.02)}
    steps |= {"data_wait_s": np.full(n, 0.01), "compute_s": np.full(n, 0.006)}
    steps |= {"gap_s": np.full(n, 0.01), "exposed_wait_s": np.full(n, 0.01)}
    telemetry = {name: np.full(3, np.nan) for name in TELEMETRY_COLUMNS}
    telemetry |= {"seq": np.arange(3.0), "t_s": np.arange(100.0, 103)}
    own = OwnSet("mine", "folder:/x", 40, 4, 3, 32, 9000, "00000000")
    facts: dict[str, Any] = {"imported": {"host": "there", "run_id": 7}, "n_train": 40}
    with guests():
        introduce(own)
        configs = (
            RunConfig(device="cpu"),
            RunConfig(dataset="mine", strategy="workers", workers=2),
        )
        runs = [
            Recording(
                run_id=number,
                name=f"run {number}",
                status="done",
                created_utc="2026-01-01T00:00:00Z",
                t_origin_s=99.5,
                config=config,
                environment={"cpu_count": 2, "torch": "2.15"},
                facts=facts
                | {"imported": {"host": "there", "run_id": number}, "own_set": vars(own)},
                verdict=Verdict(kind="input-bound", sentence="So it is.", simulated=False),
                summary=RunSummary(n_steps=n, samples_per_s=400.0),
                phases=(Phase("prepare", 90.0, 99.5),),
                notices=("no GPU",),
                steps=steps,
                telemetry=telemetry,
            )
            for number, config in enumerate(configs, 1)
        ]
        (top / "t.vitprof").write_bytes(pack(runs))
    return f"{top}/t.vitprof"


# what reads them


def look_at(spec: str) -> None:
    from vitprof.datasets.own.look import look

    look("fuzzed", spec, full=True).lines()


def command(*arguments: str) -> None:
    """Runs a command of the command line, as `vitprof.cli.main` does."""
    from vitprof.cli import app

    said = io.StringIO()
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(said),
    ):
        try:
            app(args=list(arguments), standalone_mode=False)
        except SystemExit as end:
            if end.code not in (0, 1, 2):
                raise
            if said.getvalue():
                raise VitprofError(said.getvalue().strip()) from end


def check_bundle(path: str) -> None:
    command("check", path, "--max-data-wait", "50%", "--min-samples-per-s", "5", "--max-idle", "9%")


def import_bundle(path: str) -> None:
    command("import", path)


@dataclass(frozen=True)
class Fuzzed:
    """A reader, and the good file that it is given damaged copies of."""

    make: Callable[[Path], str]
    """Writes the good file into a folder, and returns what `read` takes."""
    read: Callable[[str], None] = look_at
    may_end: bool = True
    """Whether a process that ends is survived: it is another one than the user's."""


def stored(form: str) -> Fuzzed:
    return Fuzzed(lambda top: make_stored(form, top))


READERS = {
    "folder": Fuzzed(make_folder),
    "csv": Fuzzed(make_csv),
    "parquet": Fuzzed(make_parquet),
    "hdf5": Fuzzed(make_hdf5),
    "lmdb": Fuzzed(make_lmdb),
    "webdataset": Fuzzed(make_webdataset),
    "stored-memmap": stored("memmap"),
    "stored-hdf5": stored("hdf5"),
    "stored-lmdb": stored("lmdb"),
    "stored-webdataset": stored("webdataset"),
    "stored-parquet": stored("parquet"),
    "bundle-check": Fuzzed(make_bundle, check_bundle, may_end=False),
    "bundle-import": Fuzzed(make_bundle, import_bundle, may_end=False),
}


# mutations


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Returns a damaged copy of a file's bytes."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if changed:
            chance.choice(MUTATIONS)(changed, chance)
    return bytes(changed)


def place(data: bytearray, chance: random.Random) -> int:
    first = chance.randrange(len(data))
    near = min(HEADER_BYTES, len(data))
    return chance.choice(
        (first, first, chance.randrange(near), len(data) - 1 - chance.randrange(near))
    )


def flip(data: bytearray, chance: random.Random) -> None:
    data[place(data, chance)] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[place(data, chance) :]


def take_out(data: bytearray, chance: random.Random) -> None:
    at = place(data, chance)
    del data[at : at + chance.choice((1, 8, 512, 4096))]


def splice(data: bytearray, chance: random.Random) -> None:
    source = place(data, chance)
    part = data[source : source + chance.choice((1, 8, 512, 4096))]
    at = place(data, chance)
    length = chance.choice((0, len(part)))
    data[at : at + length] = part


def number(data: bytearray, chance: random.Random) -> None:
    """Overwrites a number, of any width and order of bytes."""
    at = place(data, chance)
    width = chance.choice((1, 2, 4, 8))
    value = chance.choice(NUMBERS) & ((1 << 8 * width) - 1)
    packed = struct.pack("<Q", value)[:width]
    data[at : at + width] = packed if chance.random() < 0.5 else packed[::-1]


def digits(data: bytearray, chance: random.Random) -> None:
    """Replaces a number that is written out, as in JSON, tables and the headers of tar files."""
    found = list(re.finditer(rb"\d+", data))
    if found:
        match = chance.choice(found)
        value = chance.choice((b"0", b"-1", b"77777777777", b"9" * 30, b"[1]", b"1e99", b"x"))
        data[match.start() : match.end()] = value


MUTATIONS = (flip, flip, cut, take_out, splice, number, number, digits)


def mutated_bundle(data: bytes, chance: random.Random) -> bytes:
    """Returns a damaged bundle. Most are zip files that are whole, with a damaged member in them."""
    if chance.random() < 0.2:
        return mutated(data, chance)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(sorted(members))
    if name.endswith(".json") and chance.random() < 0.8:
        members[name] = json.dumps(odd(json.loads(members[name]), chance)).encode()
    else:
        members[name] = mutated(members[name], chance)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def odd(value: Any, chance: random.Random) -> Any:
    """Returns JSON in which one value somewhere is another one."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        return value | {key: odd(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], odd(value[at], chance), *value[at + 1 :]]
    return chance.choice(ODD_VALUES)


# one after another, in a process that may end


def damaged(spec: str, good: Path, work: Path, chance: random.Random) -> str:
    """Puts a copy with a damaged file in place of the last one. Returns what the reader takes."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(good, work)
    files = sorted(path for path in work.rglob("*") if path.is_file())
    path = chance.choice(files)
    change = mutated_bundle if path.suffix == ".vitprof" else mutated
    path.write_bytes(change(path.read_bytes(), chance))
    return spec.replace(str(good), str(work))


def verdict_of(read: Callable[[str], None], spec: str) -> str:
    """Returns "read", "refused", or what went wrong."""
    try:
        read(spec)
    except (ConfigError, VitprofError) as error:
        line = str(error)
        if "\n" in line:
            return f"a message of several lines: {line!r}"
        if DEFECTS.search(line):
            return f"an exception as the message: {line}"
        return "refused"
    except BaseException as error:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error!s:.300} ({last.filename}:{last.lineno})"
    return "read"


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def cpu_s() -> float:
    """Returns the CPU time of this process and of those that it has started, which have ended."""
    return sum(os.times()[:4])


def work_on(reader: str, seed: int, top: Path, connection: Connection) -> None:
    """Answers each number of a mutation with (what became of it, seconds, peak of memory)."""
    fuzzed = READERS[reader]
    os.environ["VITPROF_HOME"] = str(top / "home")
    good = top / "good"
    if not (top / "spec").exists():
        good.mkdir(parents=True)
        (top / "spec").write_text(fuzzed.make(good))
    spec = (top / "spec").read_text()
    first = verdict_of(fuzzed.read, spec)
    assert first == "read", f"{reader}: the good file is not read: {first}"
    # Libraries warn of each copy.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    base = peak_bytes()
    connection.send(("ready", 0.0, 0))
    while (at := connection.recv()) is not None:
        chance = random.Random(f"{seed} {reader} {at}")
        copy = damaged(spec, good, top / "copy", chance)
        # What follows is the peak of this copy alone.
        Path("/proc/self/clear_refs").write_text("5")
        began_s = cpu_s()
        what = verdict_of(fuzzed.read, copy)
        connection.send((what, cpu_s() - began_s, peak_bytes() - base))


@dataclass
class Result:
    """What became of a reader's copies."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """"read", "refused", "signal", and "failed"."""
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    growth_bytes: int = 0


@contextlib.contextmanager
def worker(reader: str, seed: int, top: Path) -> Iterator[Connection]:
    is_ready = False
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work_on, args=(reader, seed, top, theirs))
    process.start()
    theirs.close()
    try:
        # Its imports take a while. What is wrong with the good file it prints.
        with contextlib.suppress(EOFError):
            is_ready = ours.poll(120) and ours.recv()[0] == "ready"
        if not is_ready:
            raise RuntimeError(f"{reader} did not begin")
        yield ours
    finally:
        process.kill()
        process.join()
        ours.close()


def fuzz(reader: str, mutations: Sequence[int], seed: int, top: Path, keep: Path | None) -> Result:
    """Gives a reader one damaged copy after another; a process that ends is replaced."""
    result = Result()
    remaining = list(reversed(mutations))
    while remaining:
        with worker(reader, seed, top) as connection:
            while remaining:
                at = remaining.pop()
                failure = one(connection, at, result)
                has_ended = failure is None
                if has_ended and not READERS[reader].may_end:
                    failure = "it ended the process"
                if failure:
                    result.failures.append(f"{reader} {at}: {failure}")
                    if keep is not None:
                        shutil.copytree(top / "copy", keep / f"{reader}-{at}", dirs_exist_ok=True)
                if has_ended or str(failure).startswith("no answer"):
                    # Or it is in the middle of something.
                    break
    return result


def one(connection: Connection, at: int, result: Result) -> str | None:
    """Returns what went wrong with a copy, "" for nothing; None where it ended the process."""
    try:
        connection.send(at)
        if not connection.poll(MOST_WAIT_S):
            result.outcomes["failed"] += 1
            return f"no answer in {MOST_WAIT_S:.0f} s"
        what, seconds, growth = connection.recv()
    except (EOFError, OSError):
        result.outcomes["signal"] += 1
        return None
    result.slowest_s = max(result.slowest_s, seconds)
    result.growth_bytes = max(result.growth_bytes, growth)
    if what in ("read", "refused") and seconds > MOST_S:
        what = f"it took {seconds:.1f} s"
    elif what in ("read", "refused") and growth > MOST_BYTES:
        what = f"it took {growth:,} bytes"
    if what in ("read", "refused"):
        result.outcomes[what] += 1
        return ""
    result.outcomes["failed"] += 1
    return str(what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for copies that failed")
    asked = parser.parse_args()
    print("reader             copies   read refused signal failed  slowest s  growth MB")
    failures = []
    for reader in asked.readers:
        with tempfile.TemporaryDirectory() as folder:
            result = fuzz(reader, range(asked.mutations), asked.seed, Path(folder), asked.keep)
        counts = result.outcomes
        print(
            f"{reader:<17} {asked.mutations:7,} {counts['read']:6,} {counts['refused']:7,}"
            f" {counts['signal']:6,} {counts['failed']:6,} {result.slowest_s:10.2f}"
            f" {result.growth_bytes / 1e6:10.0f}",
            flush=True,
        )
        for failure in result.failures:
            print(failure, flush=True)
        failures += result.failures
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
