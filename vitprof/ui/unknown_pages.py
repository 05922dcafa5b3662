"""What the server answers where an address names no page: that there is none, and links to those that
there are.

Streamlit sends its own page for every address. Then it shows the first page, below a dialog which says
that the page does not exist and leads nowhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from vitprof.ui.gate import PAGE

SERVED = frozenset({"app", "auth", "component", "media", "oauth2callback", "static", "vendor"})
"""First folders of addresses that Streamlit serves besides pages."""
CORE = "_stcore"
"""Folder of what a page asks the server for. A page looks for it below its own address, too."""


@dataclass
class UnknownPages:
    """Answers requests for pages that there are not, and passes all others on."""

    app: ASGIApp
    pages: Mapping[str, str]
    """Address of each page below the base path ("" for the first one) -> its title."""
    base: str = ""
    """The server's base path ("" or "/name")."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request itself or passes it on."""
        answer = self.app
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            name = scope["path"].removeprefix(self.base).removeprefix("/")
            if self.is_unknown(name):
                answer = HTMLResponse(self.body(name), status_code=404)
        await answer(scope, receive, send)

    def is_unknown(self, name: str) -> bool:
        """Returns whether an address below the base path is neither a page nor a file."""
        folders = name.split("/")
        is_served = folders[0] in SERVED or CORE in folders or "." in name
        return name.rstrip("/") not in self.pages and not is_served

    def body(self, name: str) -> str:
        """Returns the page to send for the address `name`.

        Its links are relative to that address: a proxy may have added to the path.
        """
        up = "../" * name.count("/") or "./"
        first = self.pages[""]
        others = [page for page in self.pages if page]
        links = "".join(f'<li><a href="{up}{page}">{self.pages[page]}</a></li>' for page in others)
        return PAGE.format(
            body=f'<p>There is no page at this address. <a href="{up}">Open {first}</a>, the first '
            f"page, or one of the others:</p><ul>{links}</ul>"
        )
