"""Commands that the server really runs: a starved script is found and its fix proved, and children end."""

import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests import ROOT
from tests.mcp_server.clients import Person, answer, parameters, with_client
from vitprof.store import RunStore

pytestmark = pytest.mark.measured

STARVED = """
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.zeros(16), 0


torch.set_num_threads(1)
loader = DataLoader(Slow(), batch_size=8)
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ENDLESS = """
import os, signal, time
from pathlib import Path

{ignores}
Path("pid.new").write_text(str(os.getpid()))
os.rename("pid.new", "pid")
while True:
    time.sleep(0.1)
"""
ENDED_WITHIN_S = 60.0


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


async def _started(work: Path) -> psutil.Process:
    """The script's process, once it runs."""
    path = work / "pid"
    while not path.exists():
        await anyio.sleep(0.05)
    return psutil.Process(int(path.read_text()))


async def _is_gone(script: psutil.Process) -> bool:
    with anyio.move_on_after(ENDED_WITHIN_S):
        while script.is_running() and script.status() != psutil.STATUS_ZOMBIE:
            await anyio.sleep(0.05)
        return True
    return False


def test_it_finds_the_cause_of_a_starved_script_proves_the_fix_and_prints_the_patch(
    work: Path,
) -> None:
    (work / "train.py").write_text(STARVED)
    person = Person()
    said: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        said.append(message or "")

    async def use(client: Client) -> None:
        asked: dict[str, Any] = {"command": [sys.executable, "train.py"], "steps": 60}
        result = await client.call_tool("watch", asked, progress_callback=note)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        found = result.structured_content["run"]
        assert found["conclusive"], found["reason"]
        assert found["idle_frac"] > 0.3
        assert found["causes"][0]["name"] in ("dataset (waiting)", "other programs", "dataset")
        proved = await answer(client, "prove", run_id=found["run_id"], steps=40, repeats=2)
        assert proved["question"] == "", proved
        assert len(proved["settings"]) >= 2
        if not proved["decided"]:
            return
        assert proved["next_tool"] == "patch"
        made = await answer(client, "patch", tournament_id=proved["tournament_id"])
        assert "+loader = DataLoader(Slow(), batch_size=8, num_workers=" in made["diff"]

    with_client(parameters(work), use, person)
    assert len(person.asked) == 2
    assert (work / "train.py").read_text() == STARVED


@pytest.mark.parametrize("ignores", ["", "signal.signal(signal.SIGINT, signal.SIG_IGN)"])
def test_a_call_that_is_cancelled_ends_its_script(work: Path, ignores: str) -> None:
    (work / "train.py").write_text(ENDLESS.format(ignores=ignores))

    async def use(client: Client) -> None:
        async with anyio.create_task_group() as calls:
            arguments = {"command": [sys.executable, "train.py"]}
            calls.start_soon(client.call_tool, "watch", arguments)
            script = await _started(work)
            calls.cancel_scope.cancel()
        assert await _is_gone(script)
        # the server goes on
        assert (await answer(client, "runs"))["total"] <= 1

    with_client(parameters(work, "--allow-run"), use)


VANISHES = """
import sys
from pathlib import Path
from tests import ROOT
from tests.mcp_server.clients import parameters, with_client


async def use(client):
    await client.call_tool("watch", {"command": [sys.executable, "train.py"]})


with_client(parameters(Path(sys.argv[1]), "--allow-run"), use)
"""


def test_a_client_that_is_killed_leaves_neither_server_nor_script(work: Path) -> None:
    (work / "train.py").write_text(ENDLESS.format(ignores=""))
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)]))
    client = subprocess.Popen(
        [sys.executable, "-c", VANISHES, str(work)], env=os.environ | {"PYTHONPATH": paths}
    )

    async def run() -> None:
        script = await _started(work)
        (server,) = psutil.Process(client.pid).children()
        client.kill()
        client.wait()
        assert await _is_gone(script)
        assert await _is_gone(server)

    anyio.run(run)
    with closing(RunStore()) as store:
        (run_of_it,) = store.runs()
    assert not run_of_it.live


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["asked", "killed"])
def test_a_server_that_ends_ends_its_script(work: Path, number: signal.Signals) -> None:
    (work / "train.py").write_text(ENDLESS.format(ignores=""))

    async def run() -> None:
        async with (
            Client(parameters(work, "--allow-run")) as client,
            anyio.create_task_group() as calls,
        ):
            arguments = {"command": [sys.executable, "train.py"]}

            async def call() -> None:
                with suppress(MCPError):  # the server ends
                    await client.call_tool("watch", arguments)

            calls.start_soon(call)
            script = await _started(work)
            (server,) = psutil.Process(script.ppid()).parents()[:1]
            server.send_signal(number)
            assert await _is_gone(script)
            assert await _is_gone(server)
            calls.cancel_scope.cancel()

    anyio.run(run)
