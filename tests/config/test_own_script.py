"""Settings of a user's own script: read, repaired as PyTorch demands, each once, in words and as code."""

import dataclasses
import itertools
import json
import random
from typing import Any

import pytest

from tests.jobs.pretend import AS_IT_IS
from vitprof.config import own_script
from vitprof.config.own_script import (
    UNCHANGED,
    OwnScript,
    code_line,
    own_key_in_words,
    settings_of,
)
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.config.varied import OF_A_SCRIPT, read_varied
from vitprof.errors import ConfigError

MADE = {"made_given": "batch_size shuffle", "made_own_batches": False, "made_iterable": False}
LOADER: dict[str, Any] = AS_IT_IS | MADE
WITH_WORKERS = LOADER | {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}
EACH_EPOCH = WITH_WORKERS | {"persistent_workers": False}
"""Workers are started for each epoch."""


def script(*vary: str, loader: dict[str, Any] | None = None, **more: Any) -> OwnScript:
    varied = tuple(read_varied(text, OF_A_SCRIPT) for text in vary)
    return OwnScript(("python", "train.py"), "/work", varied, loader, **more)


def keys(made: OwnScript) -> list[str]:
    return [s.key.removeprefix(f"{own_script.OWN_SCRIPT}/") for s in settings_of(made)]


def one(made: OwnScript, steps: int | None = None) -> own_script.OwnSetting:
    return settings_of(made, steps)[-1]


def test_each_name_once_and_no_more_than_can_be_run() -> None:
    with pytest.raises(ConfigError, match="give each one once"):
        script("workers=0", "workers=2")
    many = ",".join(map(str, range(1, 40)))
    with pytest.raises(ConfigError, match="that makes 1521 settings; 1000 are allowed"):
        script(f"workers={many}", f"prefetch_factor={many}")


def test_what_depends_on_workers() -> None:
    made = script("workers=0,2", "prefetch_factor=2,4", "persistent_workers=on")
    two = [f"workers=2/prefetch_factor={n}/persistent_workers=on" for n in (2, 4)]
    assert keys(made) == ["unchanged", "workers=0", *two]
    none = settings_of(made)[1]
    given = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}
    assert none.arguments == given | {"multiprocessing_context": None, "timeout": 0}
    assert none.remarks == (
        "without workers prefetch_factor and persistent_workers have no meaning: left out",
    )
    assert keys(script("workers=0,2", loader=LOADER)) == ["unchanged", "workers=2"]
    assert keys(script("workers=0,2", "prefetch_factor=4", loader=WITH_WORKERS)) == [
        "unchanged",
        "workers=0",
    ]
    alone = settings_of(script("prefetch_factor=2,4", loader=LOADER))
    assert [s.key for s in alone] == [UNCHANGED]
    assert alone[0].remarks == ("without workers prefetch_factor has no meaning: left out",)
    made = one(script("decode_cache=off,ram", "workers=2", loader=LOADER), steps=100)
    assert made.changes == {"workers": 2, "persistent_workers": True, "decode_cache": "ram"}
    assert made.keeps_samples
    assert [remark[:17] for remark in made.remarks] == ["decode_cache=ram:", "decode_cache=ram "]
    assert "persistent_workers" not in one(script("decode_cache=ram", loader=LOADER)).changes


def test_batches_are_packed_where_workers_hand_them_over() -> None:
    made = one(script("pack=off,on", "workers=2", loader=LOADER))
    assert made.key == f"{own_script.OWN_SCRIPT}/workers=2/pack=on"
    assert (made.packs, made.arguments) == (True, {"num_workers": 2})
    assert own_key_in_words(made.key) == "2 workers, packed"
    line = code_line(script("pack=on", "workers=2", loader=LOADER), made.key)
    assert line.startswith("DataLoader(..., num_workers=2)  # and pack each batch")
    (alone,) = settings_of(script("pack=on", loader=LOADER))
    assert (alone.key, alone.remarks) == (
        UNCHANGED,
        ("without workers pack has no meaning: left out",),
    )


def test_another_order_of_batches_is_tried_where_somebody_asks_for_it() -> None:
    with pytest.raises(ConfigError) as refused:
        script("in_order=on,off")
    assert (refused.value.field, refused.value.value) == ("vary", "in_order=off")
    assert "the losses may differ: add --allow-other-order" in refused.value.allowed
    assert keys(script("in_order=on", loader=WITH_WORKERS)) == ["unchanged"]
    asked = {"allows_other_order": True}
    made = script("in_order=on,off", loader=WITH_WORKERS, **asked)
    assert keys(made) == ["unchanged", "in_order=off"]
    off = one(made)
    assert off.arguments == {"in_order": False}
    assert off.remarks == (
        "in_order=off gives batches as they are made, not in the sampler's order: the losses may differ",
    )
    assert own_key_in_words(off.key) == "batches as they are made"
    assert code_line(made, off.key) == "DataLoader(..., in_order=False)"
    assert own_script.is_out_of_order(off.key)
    assert not own_script.is_out_of_order(UNCHANGED)
    assert keys(script("in_order=off", loader=WITH_WORKERS | {"in_order": False}, **asked)) == [
        "unchanged"
    ]
    made = script("workers=4", "in_order=on", loader=WITH_WORKERS)
    usual = code_line(made, one(made).key)
    assert usual == "DataLoader(..., num_workers=4)", "an older PyTorch takes no in_order"
    back = script("in_order=on", loader=WITH_WORKERS | {"in_order": False})
    assert code_line(back, one(back).key) == "DataLoader(..., in_order=True)"
    (alone,) = settings_of(script("in_order=on,off", loader=LOADER, **asked))
    assert alone.remarks == ("without workers in_order has no meaning: left out",)


def test_floats_cross_as_uint8_where_workers_hand_them_over() -> None:
    made = script("uint8=off,on", "pack=on", loader=WITH_WORKERS)
    assert keys(made) == ["unchanged", "pack=on", "pack=on/uint8=on"]
    both = one(made)
    assert (both.packs, both.as_uint8, both.arguments) == (True, True, {})
    assert own_key_in_words(both.key) == "packed, as uint8"
    line = code_line(made, both.key)
    assert line.startswith("# pack each batch into one tensor for each dtype")
    assert " and hand floats of whole numbers / 255 over as uint8, and divide" in line
    (alone,) = settings_of(script("uint8=on", loader=LOADER))
    assert alone.remarks == ("without workers uint8 has no meaning: left out",)


def test_how_workers_share_tensors() -> None:
    loader = WITH_WORKERS | {"made_sharing_strategy": "file_descriptor"}
    made = script("sharing_strategy=file_descriptor,file_system", loader=loader)
    assert keys(made) == ["unchanged", "sharing_strategy=file_system"]
    other = one(made)
    assert (other.sharing_strategy, other.arguments) == ("file_system", {})
    assert own_key_in_words(other.key) == "shared by file_system"
    line = code_line(made, other.key)
    assert line == (
        '# call torch.multiprocessing.set_sharing_strategy("file_system") at the top of the script'
    )
    (alone,) = settings_of(script("sharing_strategy=file_system", loader=LOADER))
    assert alone.remarks == ("without workers sharing_strategy has no meaning: left out",)


def test_threads_of_workers() -> None:
    made = script("worker_threads=1..4:x2", loader=WITH_WORKERS | {"made_worker_threads": 1})
    assert keys(made) == ["unchanged", "worker_threads=2", "worker_threads=4"]
    two = settings_of(made)[1]
    assert (two.worker_threads, two.arguments, two.refused) == (2, {}, "")
    assert own_key_in_words(two.key) == "2 threads in each worker"
    assert code_line(made, two.key).startswith("# call torch.set_num_threads(2) and, if it is used")
    assert keys(script("worker_threads=1", loader=WITH_WORKERS)) == [
        "unchanged",
        "worker_threads=1",
    ]
    (alone,) = settings_of(script("worker_threads=2", loader=LOADER))
    assert alone.remarks == ("without workers worker_threads has no meaning: left out",)


def test_decoders_of_a_script() -> None:
    made = script("decoder=as-is,simplejpeg,torchvision,opencv", loader=WITH_WORKERS)
    assert keys(made) == [
        "unchanged",
        "decoder=simplejpeg",
        "decoder=torchvision",
        "decoder=opencv",
    ]
    as_it_is, by_simplejpeg, by_torchvision, by_opencv = settings_of(made)
    assert (as_it_is.decoder, by_opencv.decoder, by_opencv.arguments) == (None, "opencv", {})
    assert own_key_in_words(by_opencv.key) == "JPEG by opencv"
    assert by_simplejpeg.remarks == ()
    assert by_torchvision.remarks == ("decoder=torchvision is deprecated since 0.29",)
    line = code_line(made, by_simplejpeg.key)
    assert line.startswith(
        '# decode JPEG files with Image.fromarray(simplejpeg.decode_jpeg(open(path, "rb").read())) in place of '
        'Image.open(path).convert("RGB"); other files stay with Pillow'
    )
    with pytest.raises(ConfigError, match="allows_other_pixels"):
        script("decoder=opencv", allows_other_pixels="yes")


@pytest.mark.parametrize(
    ("vary", "forks", "is_refused"),
    [
        (("worker_threads=2",), True, True),
        (("worker_threads=1",), True, False),
        (("worker_threads=2",), False, False),
        (("worker_threads=2", "start_method=fork"), False, True),
        (("worker_threads=2", "start_method=forkserver"), True, False),
    ],
)
def test_forked_workers_have_one_thread(
    vary: tuple[str, ...], forks: bool, is_refused: bool
) -> None:
    """With two a forked worker never gave a batch, where the script had computed on two before."""
    refused = one(script(*vary, loader=WITH_WORKERS | {"made_forks": forks})).refused
    assert refused.startswith("its workers are forked") == is_refused
    assert bool(refused) == is_refused


@pytest.mark.parametrize(
    ("vary", "loader", "steps", "said"),
    [
        ("batch_size=16", LOADER | {"made_own_batches": True}, 9, "batch_sampler="),
        ("decode_cache=ram", LOADER | {"made_iterable": True}, 99, "IterableDataset"),
        ("decode_cache=ram", LOADER, 19, "give --steps 20 or more"),
        ("decode_cache=ram", LOADER, 20, ""),
    ],
)
def test_what_cannot_be_tried_says_why(
    vary: str, loader: dict[str, Any], steps: int, said: str
) -> None:
    refused = one(script(vary, loader=loader), steps).refused
    assert said in refused
    assert bool(said) == bool(refused)


def test_pytorch_takes_every_setting() -> None:
    """The rules of `DataLoader.__init__` (torch 2.15), on all combinations over two scripts' loaders."""
    chosen = random.Random(0)
    every = ("workers=0,1", "prefetch_factor=1,3", "pin_memory=on,off", "persistent_workers=on,off")
    more = ("start_method=fork,spawn", "decode_cache=off,ram")
    for loader, n in itertools.product((LOADER, WITH_WORKERS), range(1, 6)):
        made = script(*chosen.sample(every + more, n), loader=loader)
        for setting in settings_of(made):
            told = {"timeout": 0} | loader | setting.arguments
            if told["num_workers"] == 0:
                assert told["prefetch_factor"] is None
                assert not told["persistent_workers"]
                assert told.get("multiprocessing_context") is None
                assert told["timeout"] == 0


def test_in_words_and_as_code() -> None:
    made = script(
        "workers=0,1,4", "prefetch_factor=4", "pin_memory=on", "decode_cache=ram", loader=LOADER
    )
    *_, none, one_, four = [
        s.key for s in settings_of(script("workers=0,1,4", "pin_memory=on", loader=WITH_WORKERS))
    ]
    assert own_key_in_words(UNCHANGED) == "the unchanged script"
    words = [own_key_in_words(key) for key in (none, one_, four)]
    assert words == ["0 workers, pinned", "1 worker, pinned", "4 workers, pinned"]
    last = one(made).key
    assert (
        own_key_in_words(last)
        == "4 workers, prefetch 4, pinned, persistent workers, samples kept in RAM"
    )
    line, _, comment = code_line(made, last).partition("  # ")
    assert (
        line
        == "DataLoader(..., num_workers=4, prefetch_factor=4, pin_memory=True, persistent_workers=True)"
    )
    assert comment == "and keep the Dataset's samples in memory after their first reading"
    assert code_line(made, UNCHANGED) == ""
    given = WITH_WORKERS | {"made_given": "prefetch_factor persistent_workers"}
    without = script("workers=0", loader=given)
    line = "DataLoader(..., num_workers=0, prefetch_factor=None, persistent_workers=False)"
    assert code_line(without, one(without).key) == line, "what PyTorch would refuse is taken back"
    line = code_line(script("batch_size=16", loader=LOADER), one(script("batch_size=16")).key)
    assert line == "DataLoader(..., batch_size=16)"


def test_without_a_gpu_pinning_is_one_setting() -> None:
    """Two equal settings took ten rounds and stayed undecided."""
    loader = WITH_WORKERS | {"may_pin": False}
    made = script("workers=0,2", "pin_memory=on,off", loader=loader)
    assert keys(made) == ["unchanged", "workers=0"]
    assert "without a GPU pin_memory has no effect: left out" in settings_of(made)[0].remarks
    assert keys(script("pin_memory=on,off", loader=LOADER)) == ["unchanged", "pin_memory=on"]


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            {"framework": "transformers"},
            "TrainingArguments(..., dataloader_num_workers=4, dataloader_pin_memory=True)",
        ),
        (
            {"framework": "ultralytics"},
            "YOLO(...).train(..., workers=4)  # YOLO(...).train does not take pin_memory",
        ),
        (
            {"made_by_package": "timm"},
            "create_loader(..., num_workers=4, pin_memory=True)",
        ),
        (
            {"framework": "transformers", "made_by_package": "accelerate"},
            "TrainingArguments(..., dataloader_num_workers=4, dataloader_pin_memory=True)",
        ),
        (
            {"framework": "lightning", "made_by_script": True},
            "DataLoader(..., num_workers=4, pin_memory=True)  # in the LightningDataModule, or wherever "
            "train_dataloader() is",
        ),
        (
            {"framework": "transformers", "made_by_script": True},
            "DataLoader(..., num_workers=4, pin_memory=True)",
        ),
    ],
)
def test_the_line_is_that_of_the_framework(facts: dict[str, Any], line: str) -> None:
    made = script("workers=4", "pin_memory=on", loader=LOADER | facts)
    assert code_line(made, one(made).key) == line


def test_a_tournament_on_a_script_is_kept_and_read_again() -> None:
    made = OwnScript(
        ("a", "b c"),
        "/w",
        (("workers", (0, 2)), ("pin_memory", (True,))),
        LOADER,
        ("x.pt",),
        agreed=True,
    )
    config = own_script.own_config("", steps=9)
    spec = TournamentSpec(config, (own_script.OWN_SCRIPT,), (1,), script=made, baseline=UNCHANGED)
    again = TournamentSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert (again, spec.title) == (spec, "workers x pin_memory of a 'b c'")
    ours = {"base": {"steps": 9}, "strategies": ["memory"], "batch_sizes": [1]}
    with pytest.raises(ConfigError, match="goes with no strategy"):
        TournamentSpec.from_dict(ours | {"script": dataclasses.asdict(made)})


def test_a_loader_with_several_open_iterators_keeps_no_workers() -> None:
    """They would be one iterator: the trial would train on half of the batches."""
    zipped = WITH_WORKERS | {"persistent_workers": False, "iterators_at_once": True}
    for vary in ("persistent_workers=on", "decode_cache=ram"):
        assert (
            "several iterators of its loader are open at once"
            in one(script(vary, loader=zipped)).refused
        )
    assert not one(script("prefetch_factor=2", loader=zipped)).refused


STREAM: dict[str, Any] = LOADER | {"iterable": True, "shards": None, "divides": False}


@pytest.mark.parametrize(
    ("loader", "steps", "said"),
    [
        (STREAM, 100, "give --steps for more than one"),
        (STREAM | {"epoch_samples": [80.0]}, 23, "give --steps 24 or more, so the samples of"),
        (STREAM | {"epoch_samples": [80.0]}, 24, ""),
        (STREAM | {"divides": True}, 100, ""),
        (STREAM | {"divides": True, "shards": 1}, 100, "has 1 shard, and each worker reads whole"),
        (STREAM | {"divides": True, "shards": 2}, 100, ""),
        (STREAM | {"num_workers": 2}, 100, ""),
        (LOADER, 100, ""),
    ],
)
def test_workers_of_an_iterable_dataset_are_varied_where_they_share_its_samples(
    loader: dict[str, Any], steps: int, said: str
) -> None:
    """Else each gives all of them: 600 steps for 200, and the most workers seem the fastest."""
    refused = one(script("workers=2", loader=loader), steps).refused
    assert said in refused
    assert bool(said) == bool(refused)


def test_one_worker_gives_what_the_loop_itself_would_read() -> None:
    assert not one(script("workers=1", loader=STREAM), 100).refused
    two = STREAM | {"num_workers": 2}
    assert "not known to divide its samples" in one(script("workers=0", loader=two), 100).refused


def test_epochs_begin_early_where_somebody_asks_for_another_order() -> None:
    with pytest.raises(ConfigError) as refused:
        script("across_epochs=off,on")
    assert (refused.value.field, refused.value.value) == ("vary", "across_epochs=on")
    assert "samples then come in another order, so the losses may differ" in refused.value.allowed
    asked = {"allows_other_order": True}
    made = script("across_epochs=off,on", loader=EACH_EPOCH, **asked)
    assert keys(made) == ["unchanged", "across_epochs=on"]
    early = one(made)
    assert (early.across_epochs, early.arguments, early.refused) == (True, {}, "")
    assert own_key_in_words(early.key) == "epochs begun early"
    assert code_line(made, early.key).startswith("# begin the next epoch's iterator before")
    assert own_script.begins_early(early.key)
    assert not own_script.is_out_of_order(early.key)
    (alone,) = settings_of(script("across_epochs=on", loader=LOADER, **asked))
    assert alone.remarks == ("without workers across_epochs has no meaning: left out",)


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        ({"made_iterable": True}, "the dataset is an IterableDataset"),
        ({"iterators_at_once": True}, "several iterators of its loader are open at once"),
        ({"persistent_workers": True}, "give --vary persistent_workers=off with it"),
        ({"epoch_batches": 60}, "give --steps 120 or more"),
    ],
    ids=["iterable", "at once", "kept workers", "short trials"],
)
def test_why_no_epoch_can_begin_early(loader: dict[str, Any], why: str) -> None:
    made = script("across_epochs=on", loader=EACH_EPOCH | loader, allows_other_order=True)
    assert why in one(made, steps=100).refused
