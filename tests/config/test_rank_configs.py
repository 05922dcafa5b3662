"""What goes with several ranks, and what each of them is asked to do."""

from typing import Any

import pytest

from vitprof.config import RunConfig, rank_configs
from vitprof.config.rank_configs import config_of
from vitprof.config.resolve import resolve, run_name
from vitprof.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"isolation": "thread"}, "isolation", "ranks is 2: ranks are processes; choose process"),
        ({"compile": True}, "compile", "leave it out"),
        ({"loader_only": True}, "loader_only", "run one rank"),
        ({"skip_unreadable": True}, "skip_unreadable", "repair the samples"),
        ({"share_machine": True}, "share_machine", "several devices"),
        (
            {"dataset": "photos", "n_images": 999, "strategy": "dali"},
            "loader",
            "choose another strategy",
        ),
        (
            {"dataset": "photos", "n_images": 99, "batch_size": 50},
            "batch_size",
            "49 for each of 2 ranks",
        ),
        *(
            ({"slow_rank": text}, "slow_rank", "give RANK:MILLISECONDS")
            for text in ("2:5", "-1:5", "1", "1:x", "1:0")
        ),
        ({"slow_rank": "0:5", "ranks": 1}, "slow_rank", "it goes with several ranks"),
        ({"slow_rank": "1:5", "inject": "read:3"}, "slow_rank", "without inject and replay"),
    ],
)
def test_what_does_not_go_with_several_ranks_is_refused_in_a_line(
    settings: dict[str, Any], field: str, words: str
) -> None:
    config = RunConfig(**{"device": "cpu", "ranks": 2} | settings)
    with pytest.raises(ConfigError, match=words) as caught:
        resolve(config)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_each_rank_has_a_device_and_its_part_of_the_cores_and_one_may_be_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_configs, "job_cores", lambda: 8)
    config = resolve(RunConfig(ranks=3, device="cuda:1", slow_rank="2:20"))
    assert "3 ranks" in run_name(config)
    each = [resolve(config_of(config, rank)) for rank in range(3)]
    assert [one.device for one in each] == ["cuda:1", "cuda:2", "cuda:3"]
    assert [one.threads for one in each] == [2, 2, 2]
    assert [one.inject for one in each] == [None, None, "read:20"]
    assert config_of(RunConfig(ranks=2, threads=5, device="cpu"), 1).threads == 5
    assert config_of(RunConfig(ranks=16, device="cpu"), 1).threads == 1
