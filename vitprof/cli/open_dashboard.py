"""`open`: opens the browser at a running dashboard, here or at the other end of a tunnel."""

from __future__ import annotations

import webbrowser
from typing import Annotated

from vitprof.cli.common.terminal import EXIT_FAILED, complain, print_text
from vitprof.cli.dashboard import answering_port, port_option, ssh_tunnel, url_of, why_no_browser


def open_dashboard(
    port: Annotated[
        int | None, port_option("port of the dashboard; the first from 8501 that answers if not given")
    ] = None,
) -> None:
    """Open the browser at a dashboard that is running, here or at the other end of a tunnel."""
    port = answering_port(port)
    url = url_of(port)
    reason = why_no_browser()
    if not reason and webbrowser.open(url):
        print_text(f"vitprof: opened {url}\n")
        return
    reason = reason or "it did not start"
    words = [f"no browser can be opened here ({reason}); open {url} yourself.", *ssh_tunnel(port)]
    complain(" ".join(words), EXIT_FAILED)
