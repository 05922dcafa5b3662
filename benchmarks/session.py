"""The browser's side of a Streamlit session, without a browser: keeps a page open and requests its live refreshes.

A real Chromium uses a whole core; on a small machine that would be measured instead of the dashboard.
"""

from __future__ import annotations

import contextlib
import threading
import time
from urllib.parse import urlsplit

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol


class Session:
    """An open page. Fragments with `run_every` are refreshed at their interval, as the browser's timer would."""

    def __init__(self, base_url: str, query: str = "") -> None:
        self._query = query
        self._socket = connect(
            f"ws://{urlsplit(base_url).netloc}/_stcore/stream",
            subprotocols=[Subprotocol("streamlit")],
            max_size=None,
        )
        self._buttons: dict[str, str] = {}
        self._fragments: dict[str, tuple[float, float]] = {}
        self._page_hash = ""
        self._closing = threading.Event()
        self.refreshes = 0
        self.sizes: list[int] = []
        """Bytes received in each run of the script or of a fragment, in order."""
        self._size = 0
        self.finished = threading.Event()
        """Set whenever the server has finished a script run."""
        self._send()
        self._thread = threading.Thread(target=self._listen, name="session", daemon=True)
        self._thread.start()

    def _send(self, *, fragment: str = "", button: str = "") -> None:
        message = BackMsg()
        state = message.rerun_script
        state.query_string = self._query
        state.page_script_hash = self._page_hash
        if fragment:
            state.fragment_id = fragment
            state.is_auto_rerun = True
        if button:
            state.widget_states.widgets.append(
                WidgetState(id=self._buttons[button], trigger_value=True)
            )
        self._socket.send(message.SerializeToString())

    def press(self, label: str, timeout: float = 30.0) -> None:
        """Presses the button with this label once the page shows it. Raises `TimeoutError` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while label not in self._buttons:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the page shows no button {label!r}, only {sorted(self._buttons)}"
                )
            self.finished.wait(0.1)
        self._send(button=label)

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while not self._closing.is_set():
                due = min(
                    (at for _, at in self._fragments.values()), default=time.monotonic() + 0.1
                )
                try:
                    data = self._socket.recv(timeout=max(0.001, due - time.monotonic()))
                except TimeoutError:
                    self._refresh()
                    continue
                self._size += len(data)
                message = ForwardMsg()
                message.ParseFromString(data if isinstance(data, bytes) else data.encode())
                self._take(message)
                self._refresh()

    def _refresh(self) -> None:
        now = time.monotonic()
        for fragment, (interval, at) in list(self._fragments.items()):
            if now >= at:
                self._fragments[fragment] = (interval, now + interval)
                self.refreshes += 1
                self._send(fragment=fragment)

    def _take(self, message: ForwardMsg) -> None:
        match message.WhichOneof("type"):
            case "new_session":
                self._page_hash = message.new_session.page_script_hash
                self.finished.clear()
            case "auto_rerun":
                interval = message.auto_rerun.interval
                self._fragments[message.auto_rerun.fragment_id] = (
                    interval,
                    time.monotonic() + interval,
                )
            case "stop_auto_rerun":
                for fragment in message.stop_auto_rerun.fragment_ids:
                    self._fragments.pop(fragment, None)
            case "page_info_changed":
                self._query = message.page_info_changed.query_string
            case "delta":
                element = message.delta.new_element
                if element.WhichOneof("type") == "button":
                    self._buttons[element.button.label] = element.button.id
            case "script_finished":
                self.sizes.append(self._size)
                self._size = 0
                self.finished.set()

    @property
    def query(self) -> dict[str, str]:
        """Returns the page's query parameters, as the server last set them."""
        return dict(
            pair.split("=", 1) for pair in self._query.lstrip("?").split("&") if "=" in pair
        )

    def close(self) -> None:
        self._closing.set()
        self._socket.close()
        self._thread.join()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
