"""An address that names no page has an answer that leads on; pages and files have their own."""

import asyncio
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from tests import ROOT
from vitprof.ui import live_chart, navigation
from vitprof.ui.unknown_pages import SERVED, UnknownPages

SERVER = PlainTextResponse("served")
"""Answers whatever is passed on to it."""


def answer(path: str, base: str, method: str = "GET") -> tuple[int, str]:
    """Status and text of the answer to a request for `path` below the base path."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": f"{base}/{path}", "headers": []}
    asyncio.run(UnknownPages(SERVER, navigation.addresses(), base)(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], body.decode()


def test_pages_are_those_of_the_folder() -> None:
    files = {path.stem for path in (ROOT / "pages").glob("*.py")}
    assert files == set(navigation.TITLES) == set(navigation.ICONS)
    assert navigation.addresses()[""] == "Profile"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "history",
        "history/",
        "_stcore/health",
        "history/_stcore/host-config",
        "static/js/index.js",
        "media/0a1b.png",
        "favicon.png",
        f"{live_chart.STATIC}/chart.js",
        "oauth2callback",
    ],
)
@pytest.mark.parametrize("base", ["", "/lab"])
def test_pages_and_files_are_served(base: str, path: str) -> None:
    assert answer(path, base) == (200, "served")


@pytest.mark.parametrize(
    ("path", "home"),
    [("nonsense", "./"), ("nonsense/", "../"), ("profile", "./"), ("history/12", "../")],
)
@pytest.mark.parametrize("base", ["", "/lab"])
def test_another_address_leads_to_the_first_page(base: str, path: str, home: str) -> None:
    status, text = answer(path, base)
    assert status == 404
    assert f'There is no page at this address. <a href="{home}">Open Profile</a>' in text
    assert f'<a href="{home}history">History</a>' in text
    assert answer(path, base, "POST") == (200, "served"), "no page is asked for"


def test_the_folder_of_charts_is_served() -> None:
    assert live_chart.STATIC.partition("/")[0] in SERVED
