"""The server: its tools, its resources, its errors in one line, and its end."""

import json
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult, TextContent, ToolAnnotations
from pydantic import ValidationError

from vitprof import __version__
from vitprof.errors import VitprofError, one_line
from vitprof.mcp_server import tools
from vitprof.mcp_server.access import Access
from vitprof.names import harmless

SKILL = Path(__file__).with_name("SKILL.md")
INSTRUCTIONS = (
    "Says whether a PyTorch training script's GPU or CPU is starved by data loading, by which part, what a fix would "
    "gain, and proves the fix. Read the resource vitprof://skill first. `watch` a script, then `prove`, then `patch`."
)
MOST_SAID = 500
"""Characters of an error, at most."""
Schema = Callable[[], dict[str, Any]]


class VitprofServer(MCPServer[Any]):
    """An MCP server whose tools fail with one line."""

    def __init__(self, access: Access, schemas: Mapping[str, Schema]) -> None:
        """`schemas`: what `--json` prints, by name."""
        super().__init__(
            "vitprof", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR"
        )
        # each call would be logged, with its arguments
        logging.getLogger("mcp").setLevel(logging.ERROR)
        self.shared = tools.Server(access)
        for tool in tools.READ:
            self.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True))
        if not access.read_only:
            for tool in tools.RUN:
                self.add_tool(tool, annotations=ToolAnnotations(read_only_hint=False))
        self.resource("vitprof://skill", name="skill", mime_type="text/markdown")(skill)
        self.resource("vitprof://schema/{name}", name="schema", mime_type="application/json")(
            lambda name: _schema(schemas, name)
        )

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Calls a tool. What a client can correct comes back as one line."""
        listed = {tool.name: tool for tool in await self.list_tools()}
        if name not in listed:
            return _failed(f"there is no tool {name}; choose one of {', '.join(listed)}")
        takes = listed[name].input_schema.get("properties", {})
        unknown = [each for each in arguments if each not in takes]
        if unknown:
            return _failed(
                f"{name} takes no {unknown[0]}; it takes {', '.join(takes) or 'nothing'}"
            )
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, VitprofError):
                return _failed(one_line(cause))
            if isinstance(cause, ValidationError):
                return _failed(_invalid(cause))
            if isinstance(cause, ToolError):
                return _failed(str(cause))
            raise


def skill() -> str:
    """When to use which tool, and what the answers mean."""
    return SKILL.read_text(encoding="utf-8")


def _schema(schemas: Mapping[str, Schema], name: str) -> str:
    """The JSON Schema of what a command prints with --json."""
    return json.dumps(schemas[name]() if name in schemas else {"known": list(schemas)})


def _failed(line: str) -> CallToolResult:
    text = harmless(" ".join(line.split()))[:MOST_SAID]
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def _invalid(error: ValidationError) -> str:
    """Returns the first thing that is wrong with a tool's arguments."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}"


def serve(access: Access, schemas: Mapping[str, Schema]) -> None:
    """Serves a client on standard input and output until it goes away."""
    server = VitprofServer(access, schemas)
    anyio.run(_serve, server)


async def _serve(server: VitprofServer) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_on_signal, server)
        try:
            await server.run_stdio_async()
        except* (BrokenPipeError, anyio.BrokenResourceError):
            # the client has gone in the middle of an answer
            pass
        tasks.cancel_scope.cancel()


async def _end_on_signal(server: VitprofServer) -> None:
    """Ends the children and this program on a signal. What waits for standard input cannot be cancelled."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for number in signals:
            await server.shared.children.end_all()
            os._exit(128 + number)
