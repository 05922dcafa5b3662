"""The package's own client, over real standard input and output of `vitprof mcp`, or in this process."""

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types
from mcp import Client, StdioServerParameters

from tests import ROOT

Work = Callable[[Client], Awaitable[None]]


class Person:
    """Who answers the questions of the server, always alike."""

    def __init__(self, *, agrees: bool = True, action: str = "accept") -> None:
        self.agrees = agrees
        self.action = action
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: Any) -> mcp_types.ElicitResult:
        self.asked.append(params.message)
        content = {"allow": self.agrees} if self.action == "accept" else None
        return mcp_types.ElicitResult(action=self.action, content=content)  # type: ignore[arg-type]


def parameters(folder: Path, *options: str) -> StdioServerParameters:
    """`vitprof mcp` with this process's variables, started in a folder."""
    paths = [os.environ.get("PYTHONPATH", ""), str(ROOT)]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    arguments = ["-m", "vitprof", "mcp", *options]
    return StdioServerParameters(
        command=sys.executable, args=arguments, env=dict(variables), cwd=folder
    )


def with_client(
    server: Any, work: Work, person: Person | None = None, *, mode: str = "auto"
) -> None:
    """Runs `work` with a client of a server; without a person the client can ask nobody."""

    failed: list[BaseException] = []

    async def run() -> None:
        async with Client(server, elicitation_callback=person, mode=mode) as client:
            try:
                await work(client)
            except Exception as error:
                # raised within, it would come in a group in a group
                failed.append(error)

    anyio.run(run)
    if failed:
        raise failed[0]


async def answer(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool returns."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    found = result.structured_content
    assert isinstance(found, dict)
    return found


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """The one line with which a tool fails."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    (content,) = result.content
    assert isinstance(content, mcp_types.TextContent)
    assert content.text
    assert "\n" not in content.text
    return content.text
