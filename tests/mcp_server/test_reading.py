"""Tools that read: what they answer from the store, and what they refuse."""

import json
from dataclasses import replace
from pathlib import Path

import mcp_types
import numpy as np
import pytest
from mcp import Client

from tests.cli.test_check import add
from tests.export.patch.scripts import own_script
from tests.mcp_server.clients import answer, parameters, refusal, with_client
from tests.ui.dashboard import add_run
from tests.ui.tournaments import add_script_tournament, add_tournament
from vitprof.analysis.tournament.blocks import Disturbance, RunBlocks
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED
from vitprof.experiments.tournament import tournament_view
from vitprof.mcp_server.access import Access
from vitprof.mcp_server.server import VitprofServer
from vitprof.store import RunStore

READ = ["compare", "doctor", "patch", "results", "run", "runs"]
RUN = ["convert_plan", "prove", "read_trace", "resume", "tournament", "watch"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder that the server is started in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def server(work: Path, *, read_only: bool = True) -> VitprofServer:
    return VitprofServer(Access(work.resolve(), read_only=read_only), {})


def test_over_real_pipes_it_lists_its_tools_and_answers_for_a_run(
    mine: RunStore, work: Path
) -> None:
    run_id = add(mine, wait_s=0.02)

    async def use(client: Client) -> None:
        listed = (await client.list_tools()).tools
        assert sorted(tool.name for tool in listed) == READ
        assert all(tool.description and tool.output_schema for tool in listed)
        found = await answer(client, "run", run_id=run_id)
        assert (found["headline"], found["conclusive"]) == ("Input-bound", True)
        # 20 ms of wait and 5 ms of compute in each step
        assert found["idle_frac"] == pytest.approx(0.8, abs=0.01)
        assert found["idle_low"] <= found["idle_frac"] <= found["idle_high"]
        assert sum(part["frac"] for part in found["causes"]) == pytest.approx(1)
        assert found["gain_at_most"]["times"] == pytest.approx(5, rel=0.05)
        listing = await answer(client, "runs", status=["done"])
        assert (listing["total"], listing["runs"][0]["run_id"]) == (1, run_id)
        assert "there is no run 7" in await refusal(client, "run", run_id=7)
        read = await client.read_resource("vitprof://schema/runs-one")
        content = read.contents[0]
        assert isinstance(content, mcp_types.TextResourceContents)
        assert "run_id" in json.loads(content.text)["properties"]

    with_client(parameters(work, "--read-only"), use)


def test_over_real_pipes_it_offers_what_runs_and_has_its_skill(mine: RunStore, work: Path) -> None:
    async def use(client: Client) -> None:
        listed = (await client.list_tools()).tools
        assert sorted(tool.name for tool in listed) == sorted([*READ, *RUN])
        read = await client.read_resource("vitprof://skill")
        content = read.contents[0]
        assert isinstance(content, mcp_types.TextResourceContents)
        for name in [*READ, *RUN]:
            assert f"`{name}`" in content.text
        for word in ("undecided", "disturbed", "not measurable here"):
            assert f"**{word}**" in content.text

    with_client(parameters(work), use, mode="legacy")


def test_bad_input_is_one_line(mine: RunStore, work: Path) -> None:
    async def use(client: Client) -> None:
        line = await refusal(client, "runs", limt=3)
        assert line == "runs takes no limt; it takes text, status, verdict, tag, limit"
        assert "limit: 0 is not possible" in await refusal(client, "runs", limit=0)
        assert (await refusal(client, "run", run_id="x")).startswith("run_id: input should be")
        assert (await refusal(client, "run")) == "run_id: field required"
        assert "there is no tool watch" in await refusal(client, "watch", command=["python"])
        assert "there is no tournament 3" in await refusal(client, "results", tournament_id=3)
        assert "different runs" in await refusal(client, "compare", run_a=1, run_b=1)

    with_client(server(work), use)


def test_without_enough_steps_there_is_no_verdict_and_no_advice(mine: RunStore, work: Path) -> None:
    run_id = add(mine, n=12, wait_s=0.02)

    async def use(client: Client) -> None:
        found = await answer(client, "run", run_id=run_id)
        assert found["conclusive"] is False
        assert found["reason"]
        assert (found["fix"], found["advice"], found["next_tool"]) == ("", [], "")
        assert found["idle_frac"] is None

    with_client(server(work), use)


def test_single_runs_are_compared_but_never_firm(mine: RunStore, work: Path) -> None:
    slow = add_run(mine, wait_s=0.02)
    fast = add_run(mine, wait_s=0.001)
    other = add_run(mine, wait_s=0.001, dataset="mnist")

    async def use(client: Client) -> None:
        found = await answer(client, "compare", run_a=slow, run_b=fast)
        # without an interval nothing is known to be faster
        assert (found["ratio"] > 4, found["low"], found["faster_run"]) == (True, None, None)
        assert found["firm"] is False
        assert "single runs" in found["trust"]
        unlike = await answer(client, "compare", run_a=slow, run_b=other)
        assert (unlike["faster_run"], unlike["firm"]) == (None, False)
        assert unlike["differences"]

    with_client(server(work), use)


@pytest.mark.parametrize(("cores", "quiet"), [(0.1, True), (1.2, False)])
def test_only_a_proof_on_a_quiet_machine_is_firm(
    mine: RunStore, work: Path, monkeypatch: pytest.MonkeyPatch, cores: float, quiet: bool
) -> None:
    monkeypatch.setattr(tournament_view, "others_of", lambda *_: cores)
    source = b"from torch.utils.data import DataLoader\n\nloader = DataLoader(samples)\n"
    script = own_script(work, source, "", "workers=4")
    script = replace(script, directory=str(work.resolve()))
    waits = {UNCHANGED: 0.02, f"{OWN_SCRIPT}/workers=4": 0.0001}
    number = add_script_tournament(mine, script, waits, rounds=3)
    run_id = add(mine, wait_s=0.02)
    facts = {"command": "python train.py", "directory": str(work.resolve())}
    mine.update_run(run_id, facts=facts)

    async def use(client: Client) -> None:
        found = await answer(client, "compare", run_a=1, run_b=2)
        assert (found["faster_run"], found["firm"]) == (2, quiet)
        shown = await answer(client, "results", tournament_id=number)
        assert shown["decided"] is quiet
        assert shown["next_tool"] == ("patch" if quiet else "tournament")
        proven = await answer(client, "run", run_id=run_id)
        assert (proven["proven"]["quiet"], proven["proven"]["can_patch"]) == (quiet, quiet)
        assert (proven["next_tool"] == "patch") is quiet

    with_client(server(work), use)


def test_what_was_faster_while_other_programs_ran_is_no_decision(
    mine: RunStore, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed(_store: RunStore, _run_id: int, blocks: RunBlocks) -> Disturbance:
        n = len(blocks.per_s)
        return Disturbance(np.full(n, 1.2), np.ones(n, dtype=bool))

    monkeypatch.setattr(tournament_view, "others_of", lambda *_: 1.2)
    monkeypatch.setattr(tournament_view, "cores_for_all", lambda _: 2.0)
    monkeypatch.setattr(tournament_view, "disturbance_of", disturbed)
    source = b"from torch.utils.data import DataLoader\n\nloader = DataLoader(samples)\n"
    script = own_script(work, source, "", "workers=4")
    waits = {UNCHANGED: 0.02, f"{OWN_SCRIPT}/workers=4": 0.0001}
    number = add_script_tournament(mine, script, waits, rounds=4)

    async def use(client: Client) -> None:
        found = await answer(client, "results", tournament_id=number)
        assert (found["decided"], found["code"], found["next_tool"]) == (False, "", "tournament")
        assert "was at least 4.9 times as fast as the unchanged script" in found["recommendation"]
        four = next(each for each in found["settings"] if not each["baseline"])
        assert (four["against_baseline"], four["recommended"]) == ("faster while busy", False)
        assert four["at_least"] == pytest.approx(4.95, abs=0.05)

    with_client(server(work), use)


def test_runs_that_alternated_are_compared_by_their_tournament(mine: RunStore, work: Path) -> None:
    number = add_tournament(mine, {"memory": 0.001, "per-sample": 0.02}, rounds=3)

    async def use(client: Client) -> None:
        found = await answer(client, "compare", run_a=2, run_b=1)
        assert (found["faster_run"], found["tournament_id"]) == (1, number)
        assert 3 < found["low"] <= found["ratio"] <= found["high"]
        # what else ran is not known of these
        assert (found["firm"], found["trust"][:15]) == (False, "ran alternately")

    with_client(server(work), use)


def test_a_tournament_that_is_done_names_its_patch(mine: RunStore, work: Path) -> None:
    source = b"from torch.utils.data import DataLoader\n\nloader = DataLoader(samples)\n"
    script = own_script(work, source, "", "workers=4")
    waits = {UNCHANGED: 0.02, f"{OWN_SCRIPT}/workers=4": 0.0001}
    number = add_script_tournament(mine, script, waits)

    async def use(client: Client) -> None:
        found = await answer(client, "results", tournament_id=number)
        assert (found["decided"], found["next_tool"]) == (True, "patch")
        assert found["code"].endswith("DataLoader(..., num_workers=4)")
        best = next(each for each in found["settings"] if each["recommended"])
        assert best["against_baseline"] == "faster"
        made = await answer(client, "patch", tournament_id=number)
        assert "+loader = DataLoader(samples, num_workers=4)" in made["diff"]
        assert (work / "train.py").read_bytes() == source

    with_client(server(work), use)


def test_an_undecided_tournament_asks_for_more_rounds(mine: RunStore, work: Path) -> None:
    number = add_tournament(mine, {"memory": 0.0050, "per-sample": 0.0051}, rounds=1)

    async def use(client: Client) -> None:
        found = await answer(client, "results", tournament_id=number)
        assert (found["decided"], found["next_tool"]) == (False, "resume")
        assert found["next_command"].endswith(f"tournament resume {number} --more-rounds 3")

    with_client(server(work), use)


def test_the_patch_of_a_script_outside_of_the_folder_is_refused(
    mine: RunStore, work: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = own_script(elsewhere, b"loader = DataLoader(samples)\n", "", "workers=4")
    number = add_script_tournament(mine, script, {UNCHANGED: 0.02})
    of_jobs = add_tournament(mine, {"memory": 0.001, "per-sample": 0.02})

    async def use(client: Client) -> None:
        line = await refusal(client, "patch", tournament_id=number)
        assert f"it is outside of {work.resolve()}" in line
        assert "jobs of vitprof's own" in await refusal(client, "patch", tournament_id=of_jobs)

    with_client(server(work), use)
