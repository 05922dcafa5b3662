"""The keys and roles of runs that belong together: written, read, and what is none."""

from hypothesis import given
from hypothesis import strategies as st

from vitprof.config import RunConfig
from vitprof.store import RunStore
from vitprof.store.stored_run import MADE_FOR_A_RUN, RunGroup, read_role, role_of


def test_keys_are_as_stores_have_them() -> None:
    for kind, of in (("headroom", 7), ("tournament", 1)):
        group = RunGroup(kind, of)
        assert group.key == f"{kind}:{of}"
        assert RunGroup.parse(group.key) == group


@given(st.text(max_size=80) | st.from_regex(r"(headroom|tournament):.{0,70}", fullmatch=True))
def test_whatever_a_key_is_it_is_none_or_the_same_again(key: str) -> None:
    group = RunGroup.parse(key)
    assert group is None or group.key == key


def test_what_is_no_key_or_of_another_version() -> None:
    wrong = ":7 headroom headroom: headroom:0 headroom:-1 headroom:07 headroom:x Headroom:7 headroom:\u0663"
    for key in (
        *wrong.split(),
        "",
        "headroom:7\n",
        f"headroom:{10**80}",
        "tournament:1;2",
        "compare:7",
        "autotune:411-1790000000000000000",
        "prediction:7",
    ):
        assert RunGroup.parse(key) is None, key


def test_groups_of_runs_and_roles(store: RunStore) -> None:
    assert [RunGroup(kind, 7).run_id for kind in MADE_FOR_A_RUN] == [7]
    assert RunGroup("tournament", 7).run_id is None
    keys = {"": None, "headroom:7": RunGroup("headroom", 7), "of tomorrow:7": None}
    for key, group in keys.items():
        assert store.run(store.create_run(RunConfig(), group_key=key)).group == group
    assert read_role(role_of("memory/b32/w-/as-is", 3)) == ("memory/b32/w-/as-is", 3)
    assert read_role("nonsense") == ("", 0)
    assert read_role("a#b") == ("a", 0)
