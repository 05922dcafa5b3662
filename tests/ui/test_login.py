"""With a login configured: nothing is shown to whoever is not logged in, and what they started to those who are."""

from __future__ import annotations

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import APP, LIMIT_S, add_run, app, said
from vitprof.config import RunConfig
from vitprof.store import RunStore
from vitprof.ui import gate


class User(dict[str, object]):
    """In place of what Streamlit knows of who is at the page."""

    @property
    def is_logged_in(self) -> object:
        return self["is_logged_in"]

    def to_dict(self) -> dict[str, object]:
        return dict(self)


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> User:
    """Who is at the page, of a dashboard with a login: nobody yet."""
    now = User(is_logged_in=False)
    monkeypatch.setattr(gate, "has_login", lambda: True)
    monkeypatch.setattr(st, "user", now)
    return now


@pytest.mark.slow
def test_whoever_is_not_logged_in_sees_the_way_to_log_in_and_nothing_else(store: RunStore, user: User) -> None:
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


def test_who_started_a_run_is_said(store: RunStore, user: User) -> None:
    user.update(is_logged_in=True, email="bob@lab.example", name="Bob")
    by_ada = store.create_run(RunConfig(), started_by="ada@lab.example")
    by_nobody = add_run(store)
    store.update_run(by_ada, status="stopped")
    at = app(run=str(by_ada))
    assert "Started by ada@lab.example." in said(at)
    assert "bob@lab.example" in said(at)
    assert "Log out" in [button.label for button in at.button]
    assert "Started by a user of this machine." in said(app(run=str(by_nobody)))


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"email": "bob@lab.example", "email_verified": True, "sub": "7", "name": "Bob"}, "bob@lab.example"),
        ({"email": "bob@lab.example", "sub": "7"}, "bob@lab.example (7)"),
        ({"email": "bob@lab.example", "email_verified": False, "sub": "7"}, "bob@lab.example (7)"),
        ({"name": "Bob", "sub": "7"}, "Bob (7)"),
        ({"sub": "7"}, "7"),
        ({}, "a user without a name"),
    ],
)
def test_no_two_users_share_a_name(
    user: User, monkeypatch: pytest.MonkeyPatch, claims: dict[str, object], name: str
) -> None:
    user.update(is_logged_in=True, **claims)
    monkeypatch.setattr(gate, "get_script_run_ctx", lambda **_: object())
    assert gate.person() == name


def test_without_a_login_nobody_is_named(store: RunStore) -> None:
    at = app(run=str(store.create_run(RunConfig(), started_by="ada@lab.example")))
    assert ("Started by" in said(at), "Log out" in [button.label for button in at.button]) == (False, False)
