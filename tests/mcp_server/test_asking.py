"""Tools that run something: nothing is run before a person agrees, and nothing outside of the folder."""

import json
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from mcp import Client

from tests.cli.test_check import add
from tests.export.patch.scripts import own_script
from tests.mcp_server.clients import Person, answer, parameters, refusal, with_client
from tests.traces.written import trained_on_cpu
from tests.ui.tournaments import add_script_tournament
from vitprof.analysis.verdict.advice_rules import END_OTHERS
from vitprof.config.own_script import UNCHANGED, own_config, with_loader
from vitprof.experiments import answers
from vitprof.mcp_server import tools
from vitprof.mcp_server.access import NOT_ALLOWED, Access
from vitprof.mcp_server.children import Children, Ended
from vitprof.mcp_server.server import VitprofServer
from vitprof.store import RunStore

COMMAND = ["python", "train.py"]


class NoChildren(Children):
    """Notes what would be run."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[list[str]] = []

    async def run(self, words: object, directory: Path, report: object = None) -> Ended:
        self.begun.append(list(words))  # type: ignore[call-overload]
        return Ended(1, "", "vitprof: no child here\n")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("print('trained')\n")
    return folder


def made(work: Path, *, allow_run: bool = False) -> tuple[VitprofServer, list[list[str]]]:
    """A server whose children are only noted."""
    server = VitprofServer(Access(work.resolve(), allow_run=allow_run), {})
    children = NoChildren()
    server.shared.children = children
    return server, children.begun


def test_a_client_that_cannot_ask_is_told_what_to_type(mine: RunStore, work: Path) -> None:
    async def use(client: Client) -> None:
        line = await refusal(client, "watch", command=COMMAND, steps=40)
        assert line == (
            "not allowed: this client cannot ask its user; start the server with --allow-run, or have the user type: "
            "vitprof watch --steps 40 -- python train.py"
        )
        line = await refusal(client, "tournament", command=COMMAND, vary=["workers=0,2"])
        assert "--vary=workers=0,2 --steps=100 --repeats=3 -- python train.py" in line

    with_client(parameters(work), use)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_person_is_asked_with_the_whole_command(mine: RunStore, work: Path, mode: str) -> None:
    """By the protocol of 2026, in which a call is repeated with the answer, and by the older one."""
    server, begun = made(work)
    person = Person()

    async def use(client: Client) -> None:
        line = await refusal(client, "tournament", command=COMMAND, vary=["workers=0,2"])
        assert line == "no child here"

    with_client(server, use, person, mode=mode)
    where = f"`python train.py` in {work.resolve()}"
    assert person.asked == [
        f"Run {where} again and again, unchanged and with workers=0,2, 100 training steps each time?"
    ]
    script = ["tournament", "script", "--vary=workers=0,2", "--steps=100", "--repeats=3", "--json"]
    assert begun == [[*script, "--", *COMMAND]]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    "person", [Person(agrees=False), Person(action="decline"), Person(action="cancel")]
)
def test_a_no_runs_nothing(mine: RunStore, work: Path, person: Person, mode: str) -> None:
    server, begun = made(work)

    async def use(client: Client) -> None:
        assert await refusal(client, "watch", command=COMMAND) == NOT_ALLOWED
        assert await refusal(client, "convert_plan", command=COMMAND) == NOT_ALLOWED

    with_client(server, use, person, mode=mode)
    assert not begun


def test_with_allow_run_nobody_is_asked(mine: RunStore, work: Path) -> None:
    server, begun = made(work, allow_run=True)
    person = Person()

    async def use(client: Client) -> None:
        await client.call_tool("watch", {"command": COMMAND, "steps": 40})

    with_client(server, use, person)
    assert not person.asked
    ((watch, option, _, *rest),) = begun
    assert [watch, option, *rest] == ["watch", "--json", "--steps", "40", "--", *COMMAND]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"command": []}, "give the words of a command"),
        ({"command": ["python", "{outside}"]}, "is outside of"),
        ({"command": ["python", "train.py", "--data={outside}"]}, "is outside of"),
        ({"command": ["python", "../outside.py"]}, "is outside of"),
        ({"command": ["python", "link.py"]}, "is outside of"),
        ({"command": ["{outside}"]}, "is outside of"),
        ({"command": COMMAND, "directory": ".."}, "is outside of"),
        ({"command": COMMAND, "directory": "/"}, "is outside of"),
        ({"command": COMMAND, "directory": "none"}, "there is no such folder"),
        ({"command": COMMAND, "steps": 0}, "steps: 0 is not possible"),
        ({"command": COMMAND, "steps": 24}, "give 25 or more"),
        ({"command": COMMAND, "timeout_s": 0}, "timeout_s: 0"),
        ({"command": COMMAND, "directory": "a\0b"}, "it cannot be followed"),
        ({"command": ["python", "a\0b"]}, "no command can have"),
        ({"command": ["python", "~nobody-here/x", "x" * 5000], "steps": 0}, "steps: 0"),
    ],
)
def test_what_is_outside_or_impossible_is_refused_before_anybody_is_asked(
    mine: RunStore, work: Path, arguments: dict[str, object], complaint: str
) -> None:
    outside = work.parent / "outside.py"
    outside.write_text("print('ran')\n")
    (work / "link.py").symlink_to(outside)
    command = [str(word).format(outside=outside) for word in arguments["command"]]  # type: ignore[attr-defined]
    server, begun = made(work, allow_run=True)
    person = Person()

    async def use(client: Client) -> None:
        assert complaint in await refusal(client, "watch", **{**arguments, "command": command})

    with_client(server, use, person)
    assert not begun
    assert not person.asked


def test_a_folder_among_the_data_roots_may_be_named(
    mine: RunStore, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = work.parent / "data"
    data.mkdir()
    access = Access(work.resolve())
    with pytest.raises(Exception, match="is outside of"):
        access.check_command([*COMMAND, str(data)], work)
    monkeypatch.setenv("VITPROF_DATA_ROOTS", str(data))
    access.check_command([*COMMAND, str(data), "--data", str(data), "/dev/null"], work)


class SlowChildren(NoChildren):
    """Never end by themselves; the last one that was begun notes whether another one ran."""

    def __init__(self, run_id: int | None = None, turns: int | None = None) -> None:
        super().__init__()
        self.run_id = run_id
        self.turns = turns
        self.running = 0
        self.most = 0

    async def run(self, words: object, directory: Path, report: object = None) -> Ended:
        ended = await super().run(words, directory)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.run_id is not None:
            Path(self.begun[-1][2]).write_text(json.dumps({"run_id": self.run_id}))
        try:
            if self.turns is None:
                await anyio.sleep_forever()
            for _ in range(self.turns or 0):
                await anyio.lowlevel.checkpoint()
        finally:
            self.running -= 1
        return ended


def test_what_measures_runs_one_at_a_time(mine: RunStore, work: Path) -> None:
    server, _ = made(work, allow_run=True)
    children = SlowChildren(turns=50)
    server.shared.children = children

    async def use(client: Client) -> None:
        async with anyio.create_task_group() as calls:
            for _ in range(3):
                calls.start_soon(client.call_tool, "watch", {"command": COMMAND})

    with_client(server, use)
    assert (len(children.begun), children.most) == (3, 1)


def test_a_command_that_takes_too_long_is_ended_and_what_was_measured_is_kept(
    mine: RunStore, work: Path
) -> None:
    server, _ = made(work, allow_run=True)
    arguments = {"command": COMMAND, "timeout_s": 0.001}

    async def use(client: Client) -> None:
        server.shared.children = SlowChildren()
        line = await refusal(client, "watch", **arguments)
        assert line.startswith("it was ended after 0.001 s")
        server.shared.children = SlowChildren(add(mine, wait_s=0.02))
        found = await answer(client, "watch", **arguments)
        assert (found["exit_status"], found["run"]["headline"]) == (130, "Input-bound")
        assert found["remarks"][0].startswith("it was ended after 0.001 s")

    with_client(server, use)


def test_an_advice_is_proved_by_the_tournament_that_its_run_names(
    mine: RunStore, work: Path
) -> None:
    server, begun = made(work)
    person = Person()
    run_id = add(mine, wait_s=0.02)
    loader = {"num_workers": 0, "prefetch_factor": None, "batch_size": 128, "n_samples": 12800}
    watched = {"device": "cpu", "cpu_count": 8, "watched": {"dataset": "Samples", **loader}}
    facts = {"command": "python train.py", "directory": str(work.resolve())}
    mine.update_run(
        run_id,
        config=with_loader(own_config("train.py"), watched),
        environment=watched,
        facts=facts,
        verdict=None,
    )

    async def use(client: Client) -> None:
        found = await answer(client, "run", run_id=run_id)
        assert found["next_tool"] == "prove", found
        advised = found["advice"][0]
        assert advised["words"].startswith("setting num_workers=")
        line = await refusal(client, "prove", run_id=run_id)
        assert line == "no child here"
        assert "the first is 0" in await refusal(client, "prove", run_id=run_id, advice=99)

    with_client(server, use, person)
    ((_, _, vary, *_rest),) = begun
    assert vary.startswith("--vary=workers=")
    assert begun[0][-3:] == ["--", "python", "train.py"]
    assert "`python train.py`" in person.asked[0]


def test_a_run_whose_cause_other_programs_hide_is_watched_again(mine: RunStore, work: Path) -> None:
    run_id = add(mine, wait_s=0.02)
    verdict = answers.verdict_now(mine, mine.run(run_id))
    assert verdict is not None
    hidden = replace(verdict, cause="unclear", advice=(END_OTHERS,))
    mine.update_run(
        run_id,
        config=own_config("train.py"),
        facts={"command": "python train.py", "directory": str(work.resolve())},
        verdict=hidden.to_dict(),
    )
    server, begun = made(work)

    async def use(client: Client) -> None:
        found = await answer(client, "run", run_id=run_id)
        assert found["next_tool"] == "watch", found
        assert "end them, and call `watch` again" in await refusal(client, "prove", run_id=run_id)

    with_client(server, use, Person())
    assert not begun


def test_files_that_would_be_overwritten_are_asked_about_even_with_allow_run(
    mine: RunStore, work: Path
) -> None:
    kept = own_script(work, b"loader = DataLoader(samples)\n", "", "workers=4")
    script = replace(kept, directory=str(work.resolve()), writes=("model.pt",))
    number = add_script_tournament(mine, script, {UNCHANGED: 0.02}, status="paused")
    server, begun = made(work, allow_run=True)
    person = Person(agrees=False)

    async def use(client: Client) -> None:
        found = await answer(client, "results", tournament_id=number)
        assert "model.pt" in found["question"]
        assert found["next_tool"] == "resume"
        assert await refusal(client, "resume", tournament_id=number) == NOT_ALLOWED

    with_client(server, use, person)
    assert "model.pt" in person.asked[0]
    assert not begun


def test_a_script_whose_files_cannot_be_kept_apart_is_asked_about(
    mine: RunStore, work: Path
) -> None:
    kept = own_script(work, b"loader = DataLoader(samples)\n", "", "workers=4")
    script = replace(kept, directory=str(work.resolve()), loader=None)
    number = add_script_tournament(mine, script, {}, status="paused")
    server, begun = made(work, allow_run=True)
    person = Person()

    async def use(client: Client) -> None:
        found = await answer(client, "results", tournament_id=number)
        assert "it writes what it always writes" in found["question"]
        await client.call_tool("resume", {"tournament_id": number})

    with_client(server, use, person)
    assert "it writes what it always writes" in person.asked[0]
    assert begun == [["tournament", "resume", str(number), "--json", "--yes"]]


def test_each_tool_that_runs_is_marked_as_such(work: Path) -> None:
    server, _ = made(work)

    async def use(client: Client) -> None:
        for tool in (await client.list_tools()).tools:
            assert tool.annotations is not None
            reads = tool.name in {each.__name__ for each in tools.READ}
            assert tool.annotations.read_only_hint is reads
            assert "allowed" not in tool.input_schema["properties"]

    with_client(server, use)


def test_a_trace_is_read_without_a_question(mine: RunStore, work: Path) -> None:
    """Nothing of the user's is run, and the file must be in the folder."""
    trained_on_cpu(40, wait_ms=7.0, work_ms=3.0).write(work / "a.pt.trace.json.gz")
    server, begun = made(work)

    async def refused(client: Client) -> None:
        line = await refusal(client, "read_trace", path="a.pt.trace.json.gz", workers=2)
        assert line == "no child here"
        assert "is outside of" in await refusal(client, "read_trace", path="../elsewhere.json")
        assert "there is no such file" in await refusal(client, "read_trace", path="none.json")

    with_client(server, refused)
    path = str(work.resolve() / "a.pt.trace.json.gz")
    assert begun == [["read", "--json", "--workers=2", "--", path]]

    async def use(client: Client) -> None:
        found = await answer(client, "read_trace", path="a.pt.trace.json.gz")
        assert found["headline"] == "Input-bound"
        assert found["idle_frac"] == pytest.approx(0.7, abs=0.01)
        assert found["next_tool"] == ""

    with_client(VitprofServer(Access(work.resolve()), {}), use)
