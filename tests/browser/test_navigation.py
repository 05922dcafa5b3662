"""A page is left while one of its fragments asks for a rerun."""

from pathlib import Path
from typing import Any

from .waits import expect

APP = """
import threading
import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_requests import ScriptRequestType
from vitprof.ui import navigation

PAUSE_S = 0.01

def wait_for_the_request():
    requests = get_script_run_ctx().script_requests
    while requests._state is ScriptRequestType.CONTINUE:
        threading.Event().wait(PAUSE_S)

def one():
    st.fragment(lambda: st.checkbox("in a fragment", key="ticked"))()

def two():
    st.write("second page")
    st.fragment(lambda: st.write("answered" if st.checkbox("ask") else ""))()
    # Where the server had both requests before this page began, it has made one of them.
    if "begun" not in st.session_state and not st.session_state.get("ticked"):
        wait_for_the_request()  # of the fragment of the page before
    st.session_state.begun = True
    st.write("the end")

st.navigation([st.Page(one, default=True), st.Page(two)]).run()
"""


def test_a_fragment_of_the_page_before_does_not_empty_this_one(
    serve: Any, page: Any, tmp_path: Path
) -> None:
    script = tmp_path / "app.py"
    script.write_text(APP)
    with serve(script) as url:
        page.goto(url)
        expect(page.get_by_text("in a fragment")).to_be_visible()
        expect(page.locator("[data-test-script-state=notRunning]")).to_be_attached()
        page.evaluate("""() => {
            document.querySelector('[data-testid=stSidebarNavLink][href$=two]').click();
            document.querySelector('[data-testid=stCheckbox] input').click();
        }""")
        expect(page.get_by_text("the end")).to_be_visible()
        expect(page.locator("[data-test-script-state=notRunning]")).to_be_attached()
        page.get_by_text("ask", exact=True).click()
        expect(
            page.get_by_text("answered")
        ).to_be_visible()  # whatever was asked before was handled before
        expect(page.get_by_text("second page")).to_be_visible()
