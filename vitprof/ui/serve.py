"""The dashboard's server as the command line starts it: Streamlit, and a line that says where it is once it answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import sys
import threading
import time
import webbrowser
from typing import Any, TextIO, cast

WAIT_S = 120.0
"""How long the server may take to listen; from a cold disk it is some 10 s."""
POLL_S = 0.1


class Output:
    """A stream that drops what nobody reads any more.

    Streamlit says that it stops before it does. Where that fails, as at the end of a pipe or of a connection, it would
    go on for ever.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes text if that can be done; its length."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Sends what was written if that can be done."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main() -> None:
    """Runs the server until it is ended. `sys.argv[1]` is a JSON object: `script`, `address`, `port`, `lines` (what to
    say once it answers) and `open` (the URL that the browser is opened at, "" for none).
    """
    asked = json.loads(sys.argv[1])
    sys.stdout = cast(TextIO, Output(sys.stdout))
    threading.Thread(target=_tell, args=(asked,), name="vitprof-tell", daemon=True).start()
    options = {
        "server.port": asked["port"],
        # The browser is opened below. Streamlit would also ask for an e-mail address on its first run.
        "server.headless": "true",
        "logger.hideWelcomeMessage": "true",
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    sys.argv = ["streamlit", "run", asked["script"], *flags]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # a terminal was closed; with nohup it is ignored
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    from streamlit.web import cli

    cli.main(prog_name="streamlit")


def _leave(*_: object) -> None:
    """Ends the program: while it starts, and at the end, when the server has closed and hands its signal on."""
    sys.exit(0)


def _answers(address: str, port: int) -> bool:
    """Returns whether the dashboard answers. Its port is open before it can, and also where it then fails to start."""
    connection = http.client.HTTPConnection(address, port, timeout=WAIT_S)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().status > 0
    except http.client.BadStatusLine as error:  # it speaks TLS, or it ended
        return not isinstance(error, http.client.RemoteDisconnected)
    except OSError:
        return False
    finally:
        connection.close()


def _tell(asked: dict[str, Any]) -> None:
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(asked["address"], asked["address"])
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if _answers(address, asked["port"]):
            break
        time.sleep(POLL_S)
    else:
        return
    sys.stdout.write("\n".join(asked["lines"]) + "\n")
    sys.stdout.flush()
    if asked["open"] and not webbrowser.open(asked["open"]):
        sys.stderr.write(f"vitprof: no browser could be opened; open {asked['open']} yourself\n")
