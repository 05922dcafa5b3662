"""Tournaments whose rounds run on nodes: on an engine of this process, on submitit's, on a cluster of Ray."""

import dataclasses
import itertools
import os
import platform
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.engine_fixtures import CHEAP, small_home  # noqa: F401
from vitprof import home
from vitprof.config import RunConfig
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.cores import NODE
from vitprof.errors import ConfigError, JobError
from vitprof.experiments import trials
from vitprof.experiments.cluster import controller, rounds
from vitprof.experiments.cluster.controller import ClusterTournament
from vitprof.experiments.cluster.engines import (
    EngineGoneError,
    LostError,
    RayHead,
    Task,
    _SubmititTask,
    open_engine,
)
from vitprof.experiments.tournament.planning import create_tournament
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.store import RunStore
from vitprof.store.tournaments import newest_runs, tournament

SHORT = {
    "device": "simulated:1,5",
    "steps": 30,
    "evaluate": False,
    "isolation": "thread",
    "warmup_steps": 2,
}
BASE = RunConfig(**(CHEAP | SHORT))
A, B = "memory/b16/w-/as-is", "memory/b32/w-/as-is"
Before = Callable[[int, str], str | None]

pytestmark = pytest.mark.usefixtures("small_home", "_at_home")


@pytest.fixture
def _at_home(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assert store.file is not None
    monkeypatch.setenv("VITPROF_DB", f"sqlite:///{store.file}")
    monkeypatch.setattr(controller, "CLUSTER_EVERY_S", 0.01)
    monkeypatch.setattr(trials, "TRIALS_EVERY_S", 0.005)
    monkeypatch.setattr(rounds, "PAUSE_CHECK_S", 0.0)
    monkeypatch.delenv(NODE, raising=False)
    yield
    os.environ.pop(NODE, None)


def made(store: RunStore, **values: object) -> int:
    known = {
        "base": BASE,
        "strategies": ("memory",),
        "batch_sizes": (16, 32),
        "repeats": 2,
        "until_decided": False,
    }
    return create_tournament(store, TournamentSpec(**(known | values)))  # type: ignore[arg-type]


@dataclasses.dataclass
class Here:
    """An engine whose nodes run a round at once, in this process; `before` may say why one is lost."""

    before: Before = lambda number, node: None
    nodes: tuple[str, ...] = ("a", "b")
    busy: Iterator[bool] = dataclasses.field(default_factory=lambda: itertools.repeat(False))
    given: list[tuple[int, str, tuple[str, ...]]] = dataclasses.field(default_factory=list)

    def start(self, tournament_id: int, number: int, keys: Sequence[str]) -> Task | None:
        if next(self.busy):
            return None
        node = self.nodes[len(self.given) % len(self.nodes)]
        self.given.append((number, node, tuple(keys)))
        return Done(self, tournament_id, number, keys, node)

    def check(self) -> None: ...

    def close(self) -> None: ...


@dataclasses.dataclass
class Done:
    engine: Here
    tournament_id: int
    number: int
    keys: Sequence[str]
    node: str

    def result(self) -> str | None:
        if (why := self.engine.before(self.number, self.node)) is not None:
            raise LostError(why)
        return rounds.run_round(self.tournament_id, self.number, self.keys, self.node, {})

    def cancel(self) -> None: ...


def nodes_of(store: RunStore, number: int) -> dict[tuple[str, int], str]:
    runs = {(k, n): r.id for k, mine in newest_runs(store, number).items() for n, r in mine.items()}
    return {place: store.run(run_id).environment["hostname"] for place, run_id in runs.items()}


def test_each_round_is_on_one_node_and_the_result_is_in_the_store(store: RunStore) -> None:
    number, engine = made(store), Here()
    assert ClusterTournament(store, number, engine).run(lambda: False) == ""
    now = TournamentView(store, number).state()
    assert (now.tournament.status, now.tournament.held) == ("done", False)
    assert nodes_of(store, number) == {(A, 1): "a", (B, 1): "a", (A, 2): "b", (B, 2): "b"}
    assert {o.node for e in now.entries for o in e.outcomes} == {"a", "b"}


def test_a_round_whose_node_is_lost_runs_again_whole_on_another(store: RunStore) -> None:
    lost = ["its node is gone"]

    def before(number: int, node: str) -> str | None:
        if number != 1 or not lost:
            return None
        rounds.run_round(1, 1, [B], node, {})  # its first setting had ended there
        return lost.pop()

    number, engine = made(store), Here(before)
    assert ClusterTournament(store, number, engine).run(lambda: False) == ""
    assert [(n, node) for n, node, _ in engine.given] == [(1, "a"), (2, "b"), (1, "a")]
    assert set(nodes_of(store, number).values()) == {"a", "b"}
    assert newest_runs(store, number)[B][1].n_made == 1, (
        "the same node: what is done there is not run again"
    )


def test_a_round_that_is_lost_over_and_over_ends_it(store: RunStore) -> None:
    number = made(store)
    error = ClusterTournament(store, number, Here(lambda n, node: "gone")).run(lambda: False)
    assert error == "round 1 was lost 6 times; the last: gone"
    assert tournament(store, number).status == "paused"


class Gone(Here):
    """An engine that is gone after its first round was given to a node, which nobody hears of again."""

    def check(self) -> None:
        if self.given:
            raise EngineGoneError("the head of the cluster is gone")

    def start(self, tournament_id: int, number: int, keys: Sequence[str]) -> Task | None:
        self.given.append((number, "a", tuple(keys)))
        return Mock(result=Mock(return_value=None), cancel=Mock(side_effect=AssertionError))


def test_an_engine_that_is_gone_pauses_it_at_once(store: RunStore) -> None:
    number = made(store)
    ended = ClusterTournament(store, number, Gone()).run(lambda: False)
    assert ended == "the head of the cluster is gone"
    now = TournamentView(store, number).state().tournament
    assert (now.status, now.held, now.note) == ("paused", False, ended)
    assert ClusterTournament(store, number, Here()).run(lambda: False) == ""
    assert tournament(store, number).status == "done"


def test_the_head_of_a_ray_cluster_is_gone_once_it_was_asked_often_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RayHead, "LOOK_EVERY_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        head = RayHead(f"127.0.0.1:{listening.getsockname()[1]}")
        for _ in range(2 * RayHead.MOST_LOOKS):
            head.look()
        assert not head.is_gone
    for _ in range(RayHead.MOST_LOOKS):
        assert not head.is_gone
        head.look()
    assert head.is_gone


def test_it_pauses_and_goes_on_with_what_is_left(store: RunStore) -> None:
    number, stops = made(store), iter([False, True])
    assert (
        ClusterTournament(store, number, Here(busy=itertools.cycle([False, True]))).run(
            lambda: next(stops)
        )
        == ""
    )
    assert tournament(store, number).status == "paused"
    before = newest_runs(store, number)
    assert {n for mine in before.values() for n in mine} == {1}
    assert ClusterTournament(store, number, Here()).run(lambda: False) == ""
    assert tournament(store, number).status == "done"
    assert all(
        newest_runs(store, number)[key][n].id == r.id
        for key, mine in before.items()
        for n, r in mine.items()
    )


def test_rounds_are_added_until_it_is_decided(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = iter([(A,), ()])
    monkeypatch.setattr(controller, "can_be_fastest", lambda board: next(open_))
    engine = Here()
    ClusterTournament(store, number := made(store, until_decided=True), engine).run(lambda: False)
    assert engine.given[2:] == [(3, "a", (A,))]
    assert tournament(store, number).note == ""


def test_what_no_node_can_run_is_refused_with_the_reason(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rounds, "why_not_here", lambda c, machine: "no room" if c.batch_size == 32 else ""
    )
    number = made(store)
    ClusterTournament(store, number, Here()).run(lambda: False)
    assert tournament(store, number).refused == {B: "no room"}


def test_another_engine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="choose one of ray, ray://HOST:PORT, slurm, local"):
        open_engine("kube", 1, {})
    with pytest.raises(ConfigError, match="it goes with --on slurm"):
        open_engine("ray", 1, {"partition": "gpu"})
    for package, on in (("ray", "ray"), ("submitit", "slurm")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigError, match=f"python -m pip install {package}"):
            open_engine(on, 1, {})


def test_without_slurm_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(JobError, match="slurm cannot be used here"):
        open_engine("slurm", 1, {})


PASSWORD = "S3CRET-of-the-store"


@pytest.fixture
def with_password(monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"postgresql://me:{PASSWORD}@db.example/runs"
    monkeypatch.setenv("VITPROF_DB", address)
    return address


def files_with(text: str, *folders: Path) -> list[Path]:
    """The files below these folders that hold a text."""
    found = []
    for folder in folders:
        files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        found += [path for path in files if text.encode() in path.read_bytes()]
    return found


def test_ray_writes_down_nothing_of_the_stores_password(
    with_password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `init` and `options` are given is in logs; a task's small arguments are in memory."""
    written_down: list[Any] = []
    given: list[tuple[Any, ...]] = []

    def options(**how: Any) -> SimpleNamespace:
        written_down.append(how)
        return SimpleNamespace(remote=lambda *arguments: given.append(arguments))

    ray = SimpleNamespace(
        init=lambda **how: written_down.append(how),
        nodes=lambda: [{"NodeID": "12345678", "Alive": True, "Resources": {"CPU": 2.0}}],
        remote=lambda function: SimpleNamespace(options=options),
        shutdown=lambda: None,
        get_runtime_context=lambda: SimpleNamespace(gcs_address="127.0.0.1:1"),
    )
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    engine = open_engine("ray", 1, {})
    assert engine.start(1, 1, [A]) is not None
    assert PASSWORD not in repr(written_down)
    assert given[0][-1]["VITPROF_DB"] == with_password
    assert len(repr(given)) < 10_000, "larger ones would go into files of the object store"


class NotStarted:
    """A process of submitit's that is never started."""

    pid = 4242

    def poll(self) -> None: ...

    def send_signal(self, number: int) -> None: ...


@pytest.fixture
def _not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    from submitit.local import local

    monkeypatch.setattr(local, "start_controller", lambda **how: NotStarted())


@pytest.mark.usefixtures("_not_started")
def test_submitits_files_have_no_password_and_are_removed(
    with_password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from submitit.core.utils import DelayedSubmission

    top = home.home() / "cluster"
    engine = open_engine("local", 1, {})
    assert engine.start(1, 2, [A]) is not None
    (secret,) = files_with(PASSWORD, home.home())
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    (pickled,) = top.rglob("*_submitted.pkl")
    submitted = DelayedSubmission.load(pickled)
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(rounds, "run_round", lambda *arguments: given.append(arguments))
    submitted.function(*submitted.args)
    assert given[0][:4] == (1, 2, [A], "")
    assert given[0][4]["VITPROF_DB"] == with_password
    engine.close()
    assert not list(top.iterdir())
    with pytest.raises(JobError, match="the tournament that this round is of has ended"):
        submitted.function(*submitted.args)


@pytest.mark.usefixtures("_not_started")
def test_what_a_killed_program_left_of_submitits_files_is_removed() -> None:
    top = home.ensure_dir(home.home() / "cluster")
    space = home.process_space()
    killed = top / f"tournament-{platform.node()}-{space}-{2**31 - 1}-abc"
    elsewhere = top / f"tournament-other-{space}-{2**31 - 1}-abc"
    for folder in (killed, elsewhere):
        folder.mkdir()
        (folder / "variables.json").write_text(PASSWORD)
    (top / "7_submitted.pkl").write_text(PASSWORD)
    open_engine("local", 1, {}).close()
    assert list(top.iterdir()) == [elsewhere], "a home may be shared with that host"
    shutil.rmtree(elsewhere)


def test_a_task_that_is_lost_leaves_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "home"))
    printed = tmp_path / "7_0_log.err"
    printed.write_text("Killed\n")
    missing = tmp_path / "none"
    paths = SimpleNamespace(result_pickle=missing, stdout=missing, stderr=printed)
    job = SimpleNamespace(done=lambda: True, paths=paths, job_id="7")
    with pytest.raises(LostError, match="job 7 ended without a result; its log is") as lost:
        _SubmititTask(job).result()
    log = Path(str(lost.value).rpartition(" ")[2])
    assert log.read_text() == "Killed\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


MARKED = "?timeout=31415.9265"
"""The end of a store's address, which is looked for as a password would be."""


@pytest.mark.measured
def test_submitit_runs_rounds_as_processes(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("VITPROF_DB", f"sqlite:///{store.file}{MARKED}")
    number, engine = made(store, repeats=1), open_engine("local", 4, {})
    try:
        assert ClusterTournament(store, number, engine).run(lambda: False) == ""
    finally:
        engine.close()
    assert tournament(store, number).status == "done"
    assert len(nodes_of(store, number)) == 2
    assert not list((home.home() / "cluster").iterdir())
    assert store.file is not None
    assert not files_with(MARKED, home.home(), store.file.parent)


@pytest.mark.measured
def test_two_nodes_of_ray_share_the_rounds(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setenv("VITPROF_DB", f"sqlite:///{store.file}{MARKED}")
    cluster.add_node(num_cpus=1)
    session = Path(cluster.head_node.get_session_dir_path())
    number = made(store)
    try:
        engine = open_engine("ray", 2, {})
        try:
            assert ClusterTournament(store, number, engine).run(lambda: False) == ""
        finally:
            engine.close()
    finally:
        cluster.shutdown()
        assert not ray.is_initialized()
    assert tournament(store, number).status == "done"
    assert list((session / "logs").iterdir())
    assert not files_with(MARKED, session, home.home(), tmp_path)
    found = nodes_of(store, number)
    assert len(set(found.values())) == 2
    assert all(found[A, n] == found[B, n] for n in (1, 2)), "a round is on one node"
