"""Settings that differ: only those, in a person's order, with the defaults told from what was set."""

import dataclasses

from vitprof.analysis.compare.differences import ORDER, config_differences
from vitprof.config import CONFIG_COLUMNS, RunConfig
from vitprof.config.resolve import resolve


def config(**asked: object) -> RunConfig:
    return resolve(RunConfig(**{"steps": 10, "device": "cpu", **asked}))


def test_only_what_differs_in_the_order_of_the_panels_with_the_strategys_own_as_defaults() -> None:
    found = config_differences([config(batch_size=64, seed=1), config(batch_size=128, seed=2)])
    assert ([d.field for d in found], [c.value for c in found[0].cells]) == (
        ["batch_size", "seed"],
        [64, 128],
    )
    assert [c.default for c in found[0].cells] == [False, True]
    assert [c.differs for c in found[0].cells] == [False, True]
    assert set(ORDER) == set(CONFIG_COLUMNS)
    own, asked, none = (
        config(strategy="workers"),
        config(strategy="workers", workers=3),
        config(strategy="memory"),
    )
    found = {d.field: d.cells for d in config_differences([own, asked, none])}
    assert [c.default for c in found["workers"]] == [True, False, False]
    assert found["workers"][2].value is None
    assert [c.default for c in found["storage"]] == [True, True, True]
    budget = {
        d.field: d.cells for d in config_differences([config(), config(steps=None, epochs=2)])
    }
    assert [c.default for c in budget["steps"]] == [False, False]


def test_what_one_side_does_not_take_is_no_difference_unless_somebody_set_it() -> None:
    workers, asked = config(strategy="workers"), config(strategy="memory", shuffle="none")
    assert "shuffle" not in {
        d.field for d in config_differences([workers, config(strategy="memory")])
    }
    for configs in ([workers, asked], [asked, workers]):
        found = {d.field: d.cells for d in config_differences(configs)}
        assert not any(cell.differs for cell in found["shuffle"])
    slow, slower = config(strategy="slow-drive"), config(strategy="slow-drive", slow_mb_s=5)
    (found_drive,) = config_differences([slow, slower])
    assert [c.differs for c in found_drive.cells] == [False, True], (
        "None is a value of its own: the preset's"
    )


def test_what_this_version_does_not_know_has_no_defaults_and_leaves_the_rest_to_see() -> None:
    gone = dataclasses.replace(config(), strategy="of-another-version")
    (found,) = config_differences([config(), gone])
    assert [c.default for c in found.cells] == [True, False]
    gone = dataclasses.replace(
        config(strategy="memory", batch_size=32), storage="of-another-version"
    )
    assert gone.workers is None
    found = {
        d.field: d.cells
        for d in config_differences([config(strategy="workers", batch_size=64), gone])
    }
    assert [c.value for c in found["batch_size"]] == [64, 32]
    assert found["storage"][1].value == "of-another-version"
