"""The gate before Streamlit, asked without a server: who is passed on, what others are told; token and login."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
import streamlit as st
from itsdangerous import TimestampSigner
from starlette.applications import Starlette
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import APP, LIMIT_S, add_run, app, said
from vitprof.charts.style import IN_BROWSER, PLOTLY_JS
from vitprof.config import RunConfig
from vitprof.errors import VitprofError
from vitprof.store import RunStore
from vitprof.ui import gate, web
from vitprof.ui.gate import Token, _PassSigner
from vitprof.ui.live_chart import CHART_JS

TOKEN = Token("correct horse battery", generated=False)
RIGHT = b"token=correct+horse+battery"
FORM = {"content-type": "application/x-www-form-urlencoded"}


class Asked:
    """A gate, and what it answers. What it passes on is answered 200 "inside", a WebSocket accepted."""

    def __init__(
        self, *, token: Token | None = None, wide: bool = False, login: bool = False, **more: Any
    ) -> None:
        self.passed_on: list[str] = []
        self.now = 1_000_000.0

        async def inside(scope: Any, receive: Any, send: Any) -> None:
            self.passed_on.append(scope["path"])
            if scope["type"] == "websocket":
                await send({"type": "websocket.accept"})
                return
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"inside"})

        hosts = ("localhost", "::1")
        self.gate = gate.Gate(inside, hosts, token, wide, login, clock=lambda: self.now, **more)

    def __call__(
        self,
        path: str = "/",
        *,
        kind: str = "http",
        body: bytes = b"",
        headers: Any = (),
        **more: Any,
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and body of an answer; of a WebSocket 101 or 403. `more` is of the ASGI scope."""
        given = [
            ("host", "localhost:8501"),
            *(headers.items() if isinstance(headers, dict) else headers),
        ]
        if isinstance(headers, dict) and "host" in headers:
            del given[0]
        scope = {
            "type": kind,
            "method": "GET",
            "scheme": "http" if kind == "http" else "ws",
            "path": path,
        }
        scope |= {
            "query_string": b"",
            "server": ("127.0.0.1", 8501),
            "client": ("127.0.0.1", 40000),
            **more,
        }
        scope["headers"] = [(name.encode(), value.encode()) for name, value in given]
        sent: list[Any] = []
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return parts.pop() if parts else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.gate(scope, receive, send))
        if kind == "websocket":
            return {"websocket.accept": 101, "websocket.close": 403}[sent[0]["type"]], {}, ""
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return (
            sent[0]["status"],
            found,
            b"".join(part.get("body", b"") for part in sent[1:]).decode(),
        )


def test_somebody_at_this_machine_notices_nothing_but_headers() -> None:
    ask = Asked()
    status, headers, body = ask()
    assert (status, body) == (200, "inside")
    assert gate.SECURITY_HEADERS.items() <= headers.items()
    assert ask(kind="websocket", headers={"origin": "http://localhost:8501"})[0] == 101
    assert ask(server=None)[0] == 200, "a Unix socket"


def test_foreign_names_and_pages_are_refused() -> None:
    given: list[Any] = [
        {"host": "evil.example"},
        {"host": "evil.example", "origin": "http://evil.example"},
    ]
    given += [
        {"origin": origin} for origin in ("http://evil.example", "null", "http://localhost:9999")
    ]
    given += [
        [("host", "evil.example")],
        [("origin", "http://localhost:8501"), ("origin", "http://evil.example")],
    ]
    for headers in given:  # the last two have a second host, a second origin
        ask = Asked(token=TOKEN)
        assert [ask(kind=kind, headers=headers)[0] for kind in ("http", "websocket")] == [403, 403]
        assert not ask.passed_on
        assert ask("/_stcore/health", headers=headers)[0] == 200, "says ok and no more"


def test_wider_than_this_machine_it_is_closed_and_says_how_to_open_it() -> None:
    for ask, server in ((Asked(wide=True), ("127.0.0.1", 8501)), (Asked(), ("192.0.2.7", 8501))):
        status, headers, body = ask(server=server)
        assert status == 403
        assert gate.SECURITY_HEADERS.items() <= headers.items()
        for way in ("VITPROF_TOKEN", "[auth]", "ssh -N -L"):
            assert way in body
        for path, kind in (
            ("/_stcore/stream", "websocket"),
            ("/app/static/plotly.js", "http"),
            ("/media/x", "http"),
        ):
            assert ask(path, kind=kind, server=server)[0] == 403
        assert not ask.passed_on
    assert Asked(wide=True, login=True)()[0] == 200, "the page itself asks for the login"


def test_without_the_token_there_is_nothing_but_the_question() -> None:
    ask = Asked(token=TOKEN)
    for path in ("/", "/history", "/media/x.csv", "/app/static/plotly.js", "/_stcore/host-config"):
        status, _, body = ask(path)
        assert (status, 'type="password"' in body, 'method="post"' in body) == (401, True, True)
    assert ask("/_stcore/stream", kind="websocket")[0] == 403
    for query in (b"token=correct+horse+battery", b"token=correct%20horse%20battery"):
        assert ask(query_string=query)[0] == 401, "never in a URL"
    assert ask(headers={"authorization": "Bearer correct horse battery"})[0] == 401
    assert not ask.passed_on
    assert ask("/_stcore/health")[0] == 200


def test_told_once_a_browser_is_let_in() -> None:
    ask = Asked(token=TOKEN)
    status, headers, body = ask(
        "/history", method="POST", body=RIGHT, headers=FORM, query_string=b"text=a%26b"
    )
    assert (status, body, headers["location"]) == (303, "", "./history?text=a%26b")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert {a.lower() for a in attributes} == {"httponly", "path=/", "samesite=lax"}, (
        "ends with the browser"
    )
    assert cookie.startswith("vitprof_8501=")
    assert "horse" not in cookie
    for kind, status in (("http", 200), ("websocket", 101)):
        assert ask(kind=kind, headers={"cookie": f"other=1; {cookie}"})[0] == status
    assert ask(headers={"cookie": cookie, "host": "localhost:8502"})[0] == 401, "another dashboard"
    assert ask(headers={"cookie": cookie, "origin": "http://evil.example"})[0] == 403
    ask.now += 8 * 24 * 3600
    assert ask(headers={"cookie": cookie})[0] == 401


def test_wrong_ones_are_refused_and_then_slowed_down_right_or_not() -> None:
    ask = Asked(token=TOKEN)
    for n in range(gate.FROM_ONE):
        status, headers, body = ask(method="POST", body=b"token=guess", headers=FORM)
        assert (status, "That is not the token." in body, "set-cookie" in headers) == (
            401,
            True,
            False,
        ), n
    for body in (b"token=guess", RIGHT):
        status, headers, page = ask(method="POST", body=body, headers=FORM)
        assert (status, int(headers["retry-after"]) > 50, "Too many attempts" in page) == (
            429,
            True,
            True,
        )
    assert ask(method="POST", body=RIGHT, headers=FORM, client=("192.0.2.8", 40000))[0] == 303


def test_the_address_that_a_sender_gives_itself_is_not_counted_unless_a_proxy_is_trusted() -> None:
    for trusted, answers in ((False, {401, 429}), (True, {401})):
        ask = Asked(token=TOKEN, proxies=trusted)
        given = [{**FORM, "x-forwarded-for": f"192.0.2.{n}"} for n in range(2 * gate.FROM_ONE)]
        wrong = {"method": "POST", "body": b"token=guess"}
        tried = {
            ask(**wrong, headers=headers, client=(headers["x-forwarded-for"], 1))[0]
            for headers in given
        }
        assert tried == answers


def test_forms_that_are_none() -> None:
    for body in (
        b"",
        b"token",
        b"token=%ff%00",
        b"\xff" * 9,
        b"token=" + b"x" * 100_000,
        b"token=guess&" + RIGHT,
    ):
        assert Asked(token=TOKEN)(method="POST", body=body, headers=FORM)[0] == 401
    for path in (
        "//evil.example/",
        "/\\evil.example",
        "/https://evil.example",
        "/a/https:evil.example",
    ):
        location = Asked(token=TOKEN)(path, method="POST", body=RIGHT, headers=FORM)[1]["location"]
        assert (location[:2], "//" in location) == ("./", False)


@pytest.mark.parametrize("base", ["", "/lab"])
def test_both_files_of_charts_are_served_and_nothing_else(base: str) -> None:
    assert {file.name for file in IN_BROWSER.iterdir()} == {CHART_JS.name, PLOTLY_JS.name}
    ask = Asked(base=base)
    ask.gate.app = Starlette(routes=[web.chart_files(base)])
    chart = f"{base}/app/static/{CHART_JS.name}"
    assert ask(chart)[2] == CHART_JS.read_text()
    for name in (
        ".gitignore",
        "",
        "../style.py",
        f"x/../{CHART_JS.name}",
        f"./{CHART_JS.name}",
        f"{CHART_JS.name}/",
        "/etc/passwd",
        f"{CHART_JS.name}\x00",
    ):
        assert ask(f"{base}/app/static/{name}")[0] == 404, name
    assert ask(chart, method="POST")[0] == 405
    ask = Asked(base=base, token=TOKEN)
    ask.gate.app = Starlette(routes=[web.chart_files(base)])
    assert ask(chart)[0] == 401


def test_a_browser_keeps_a_file_of_charts() -> None:
    ask = Asked()
    ask.gate.app = Starlette(routes=[web.chart_files("")])
    _, headers, _ = ask(f"/app/static/{CHART_JS.name}")
    assert "immutable" in headers["cache-control"]
    again = ask(f"/app/static/{CHART_JS.name}", headers={"if-none-match": headers["etag"]})
    assert (again[0], again[2]) == (304, "")


OWN = ("localhost", "127.0.0.1", "::1", "*.lab.example")


def test_names_pages_and_addresses_that_are_allowed() -> None:
    for host in (
        "localhost",
        "LOCALHOST:1",
        "localhost.:8501",
        "127.0.0.1",
        "[::1]:8501",
        "a.lab.example",
    ):
        assert gate.is_named(host, OWN), host
        assert gate.is_named(host, ("*",)), host
    hosts = "evil.example localhost.evil.example lab.example evillab.example 127.0.0.2 ::1 [::2] [::1 localhost:port"
    hosts += " localhost:99999 me@localhost evil.example@localhost localhost/path localhost? localhost# 2130706433"
    assert [host for host in ["", "local\thost", *hosts.split()] if gate.is_named(host, OWN)] == []
    assert gate.is_named("evil.example", ()), "an empty list allows every name that is one"
    assert not gate.is_named("", ())
    for host in ("localhost:8501", "[::1]:8501", "localhost"):
        assert gate.is_own_page(f"http://{host.upper()}", host)
        assert gate.is_own_page(f"https://{host}", host), "a proxy ends TLS"
        others = (
            "http://localhost:8502",
            "http://127.0.0.1:8501",
            "null",
            "file://",
            f"chrome-extension://{host}",
        )
        assert not any(gate.is_own_page(origin, host) for origin in (*others, host))
    pairs = (("http://localhost", "localhost:8501"), ("null", "null"), ("file://", ""), ("", ""))
    assert not any(gate.is_own_page(origin, host) for origin, host in pairs)
    narrow = ("127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "unix:/run/vitprof")
    assert all(map(gate.is_this_machine, narrow))
    assert not any(map(gate.is_this_machine, (None, "0.0.0.0", "::", "192.168.1.7", "my-host", "")))


def test_a_token_is_taken_from_the_environment() -> None:
    environ = {"VITPROF_TOKEN": f" {TOKEN.text}\n", "PATH": "/bin"}
    assert (gate.take_token(environ), environ) == (TOKEN, {"PATH": "/bin"}), (
        "jobs do not inherit it"
    )
    assert gate.take_token(environ) is None
    assert gate.take_token({"VITPROF_TOKEN": " "}) is None
    first, second = (gate.take_token({"VITPROF_TOKEN": "auto"}) for _ in range(2))
    assert (first.generated, len(first.text) > 40, first != second) == (True, True, True)
    environ = {"VITPROF_TOKEN": "secret"}
    with pytest.raises(
        VitprofError, match=r"^VITPROF_TOKEN has 6 characters: give 16 or more, or auto "
    ) as caught:
        gate.take_token(environ)
    assert ("secret" in str(caught.value), environ) == (False, {})


def test_only_the_token_itself_is_right_and_its_pass_ends() -> None:
    token, text = TOKEN, TOKEN.text
    assert token.is_right(text)
    assert not any(map(token.is_right, ("", text[:-1], text + " ", text.upper(), "ü" * len(text))))
    assert text not in repr(token)
    assert Token("\udcff" * 16, generated=False).is_right("\udcff" * 16), (
        "bytes of the environment that are no text"
    )
    now = 1_000_000.0
    value = token.pass_for(now)
    assert text not in value
    # the last was issued in the future
    for since, known in (
        (0, True),
        (gate.KNOWN_FOR_S, True),
        (gate.KNOWN_FOR_S + 1, False),
        (-1, False),
    ):
        assert token.is_pass(value, now + since) is known
    said, issued, signature = value.split(".")
    later = _PassSigner(token, now + 1).sign("pass").decode().split(".")[1]
    forged = [
        *("", ".", "..", said, issued, f"{said}.{issued}", f"{issued}.{signature}"),
        *(f"{said}.{later}.{signature}", f"{said}.{issued}.{signature[:-1]}"),
        *(f".{issued}.{signature}", f"{said}..{signature}", f"{said}.{'z' * 5000}.{signature}"),
        *(f"{said}.-1.{signature}", f"{said}.².{signature}", "\udcff"),
    ]
    assert later != issued
    assert [each for each in forged if token.is_pass(each, now)] == []


def test_a_pass_that_was_changed_anywhere_is_none() -> None:
    value = TOKEN.pass_for(1_000_000.0)
    for at, letter in enumerate(value):
        # "Q" differs from "A" in a bit that counts also at the end, where base64 has some to spare
        other = "A" if letter != "A" else "Q"
        tampered = value[:at] + other + value[at + 1 :]
        assert not TOKEN.is_pass(tampered, 1_000_000.0), at


def test_a_pass_of_another_token_or_made_for_something_else_is_none() -> None:
    now = 1_000_000.0
    assert not TOKEN.is_pass(Token(TOKEN.text + "!", generated=False).pass_for(now), now)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimestampSigner, "get_timestamp", lambda _: int(now))
        elsewhere = TimestampSigner(TOKEN.text).sign("pass").decode()
    assert elsewhere.split(".")[:2] == TOKEN.pass_for(now).split(".")[:2], "at the same moment"
    assert not TOKEN.is_pass(elsewhere, now)


def test_with_a_bad_pass_there_is_nothing_but_the_question() -> None:
    ask = Asked(token=TOKEN)
    good = TOKEN.pass_for(ask.now)
    expired = TOKEN.pass_for(ask.now - gate.KNOWN_FOR_S - 1)
    foreign = Token("another dashboard's", generated=False).pass_for(ask.now)
    not_yet = TOKEN.pass_for(ask.now + 1)
    for value in (good.replace("pass", "paSs"), expired, foreign, not_yet, TOKEN.text):
        headers = {"cookie": f"vitprof_8501={value}"}
        assert ask(headers=headers)[0] == 401
        assert ask("/_stcore/stream", kind="websocket", headers=headers)[0] == 403
    assert not ask.passed_on
    assert ask(headers={"cookie": f"vitprof_8501={good}"})[0] == 200


def test_guessing_is_slowed_down_for_one_and_for_all() -> None:
    now = 0.0
    attempts = gate.Attempts(lambda: now)
    assert [attempts.wait_s("a") for _ in range(gate.FROM_ONE)] == [0.0] * gate.FROM_ONE
    now = 10.0
    assert [attempts.wait_s(one) for one in "ab"] == [gate.WINDOW_S - 10, 0.0], (
        "another one is not kept out by it"
    )
    now = 1000.0
    waits = [attempts.wait_s(f"address {i}") for i in range(gate.FROM_ALL + 1)]
    assert waits == [0.0] * gate.FROM_ALL + [gate.WINDOW_S]
    now += gate.WINDOW_S
    assert attempts.wait_s("a") == 0.0


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """In place of what Streamlit knows of who is at the page, of a dashboard with a login: nobody yet."""
    now = Mock(is_logged_in=False)
    monkeypatch.setattr(gate, "has_login", lambda: True)
    monkeypatch.setattr(st, "user", now)
    return now


def test_whoever_is_not_logged_in_sees_the_way_to_log_in_and_nothing_else(
    store: RunStore, user: Mock
) -> None:
    number = add_run(store, name="secret")
    at = AppTest.from_file(str(APP), default_timeout=LIMIT_S)
    at.secrets = {"auth": {"client_id": "x", "lab": {"client_id": "y"}}}
    at.query_params["run"] = str(number)
    for page in ("", "history"):
        if page:
            at.switch_page(f"pages/{page}.py")
        at.run()
        assert not at.exception
        assert [button.label for button in at.button] == ["Log in", "Log in with lab"]
        assert said(at) == "vitprof"
        assert not at.sidebar.children


def test_who_started_a_run_is_said_where_there_is_a_login(store: RunStore, user: Mock) -> None:
    user.is_logged_in, user.to_dict.return_value = True, {"email": "bob@lab.example", "name": "Bob"}
    by_ada = store.create_run(RunConfig(), started_by="ada@lab.example")
    store.update_run(by_ada, status="stopped")
    at = app(run=str(by_ada))
    assert {"Started by ada@lab.example.", "bob@lab.example"} <= set(said(at).splitlines())
    assert "Log out" in [button.label for button in at.button]
    assert gate.started_by("") == "Started by a user of this machine."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "has_login", lambda: False)
        at.run()
    assert ("Started by" in said(at), "Log out" in [button.label for button in at.button]) == (
        False,
        False,
    )


def test_no_two_users_share_a_name(user: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "get_script_run_ctx", lambda **_: object())
    email = {"email": "bob@lab.example", "sub": "7"}
    for claims, name in (
        (email | {"email_verified": True, "name": "Bob"}, "bob@lab.example"),
        (email, "bob@lab.example (7)"),
        (email | {"email_verified": False}, "bob@lab.example (7)"),
        ({"name": "Bob", "sub": "7"}, "Bob (7)"),
        ({"sub": "7"}, "7"),
        ({}, "a user without a name"),
    ):
        user.is_logged_in, user.to_dict.return_value = True, {"is_logged_in": True, **claims}
        assert gate.person() == name


@pytest.mark.parametrize(
    ("changed", "alone"),
    [
        ({}, True),
        ({"address": "0.0.0.0"}, False),
        ({"address": None}, False),
        ({"hosts": ("localhost", "lab.example")}, False),
        ({"hosts": ()}, False),
        ({"hosts": ("*",)}, False),
        ({"token": True}, False),
        ({"login": True}, False),
        ({"proxies": True}, False),
    ],
)
def test_only_a_page_of_this_machine_alone_may_ask_for_more_folders(
    changed: dict[str, object], alone: bool
) -> None:
    usual: dict[str, Any] = {
        "address": "127.0.0.1",
        "hosts": ("localhost", "127.0.0.1", "::1"),
        "token": False,
        "login": False,
        "proxies": False,
    }
    try:
        gate.state_reach(**(usual | changed))
        assert gate.serves_this_machine_only() is alone
    finally:
        gate.state_reach(None, (), token=False, login=False, proxies=False)
