"""The dashboard's server as the command line starts it.

It is Streamlit, and a line that says where it is once it answers.
"""

import contextlib
import faulthandler
import http.client
import json
import os
import signal
import sys
import threading
import time
import webbrowser
from typing import Any, TextIO, cast

WAIT_S = 120.0
"""Seconds that the server may take until it answers; from a cold disk it takes about 10."""
SERVER_EVERY_S = 0.1
LEAVE_WITHIN_S = 2.0
"""Seconds that Python may take to end once the server has closed."""
END_WITHIN_S = 60.0
"""Seconds that the server may take to end; stopping jobs and storing what they measured takes less
than 40."""


class QuietStream:
    """A stream that drops what nobody reads any more: an error here would keep Streamlit from
    stopping.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main() -> None:
    """Runs the server until it is stopped.

    `sys.argv[1]` is a JSON object: `script`, `address`, `port`, `lines` (to print once it answers)
    and `open` (the URL to open in the browser, "" for none).
    """
    request = json.loads(sys.argv[1])
    sys.stdout = cast(TextIO, QuietStream(sys.stdout))
    threading.Thread(
        target=_announce, args=(request,), name="vitprof-announce", daemon=True
    ).start()
    # headless: the browser is opened below. Streamlit would also ask for an e-mail address on its
    # first run.
    flags = [
        f"--server.port={request['port']}",
        "--server.headless=true",
        "--logger.hideWelcomeMessage=true",
    ]
    sys.argv = ["streamlit", "run", request["script"], *flags]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    # SIGHUP is sent when a terminal is closed; nohup ignores it
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    from streamlit.web import cli

    limit_end()
    cli.main(prog_name="streamlit")


def limit_end() -> None:
    """Makes a server that hangs as it closes print where each of its threads is, and end after
    `END_WITHIN_S`.

    Once it has closed all is stored: a thread that still waits for a file, as for one on a drive that
    does not answer, is not waited for. Python would, where it is one of an executor.
    """
    import uvicorn

    close = uvicorn.Server.shutdown

    async def close_in_time(server: uvicorn.Server, sockets: Any = None) -> None:
        faulthandler.dump_traceback_later(END_WITHIN_S, exit=True)
        await close(server, sockets)
        leaving = threading.Timer(LEAVE_WITHIN_S, os._exit, [0])
        leaving.daemon = True
        leaving.start()

    uvicorn.Server.shutdown = close_in_time  # type: ignore[method-assign, assignment]


def _leave(*_: object) -> None:
    """Ends the program: during its start, and after the server has closed and raised its signal
    again.
    """
    sys.exit(0)


def _answers(address: str, port: int) -> bool:
    """Returns whether the dashboard answers.

    That its port is open is not enough: it opens before the dashboard can answer, and even where it
    then fails to start.
    """
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


def _announce(request: dict[str, Any]) -> None:
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(request["address"], request["address"])
    until = time.monotonic() + WAIT_S
    while not _answers(address, request["port"]):
        if time.monotonic() > until:
            return
        time.sleep(SERVER_EVERY_S)
    print(*request["lines"], sep="\n", flush=True)  # noqa: T201
    if request["open"] and not webbrowser.open(request["open"]):
        sys.stderr.write(f"vitprof: no browser could be opened; open {request['open']} yourself\n")
