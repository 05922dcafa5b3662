"""A page is left while one of its fragments asks for a rerun."""

from pathlib import Path
from typing import Any

from .waits import expect

APP = """
import time
import streamlit as st
from vitprof.ui import navigation

def one():
    st.fragment(lambda: st.checkbox("in a fragment"))()

def two():
    st.write("second page")
    st.fragment(lambda: st.write("answered" if st.checkbox("ask") else ""))()
    time.sleep(0.3)  # the fragment's request comes meanwhile
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
