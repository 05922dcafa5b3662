"""vitprof's dashboard: `streamlit run app.py`.

Everything is under a guard, because worker processes started by spawn or forkserver import this
file again.
"""

import streamlit as st


def main() -> None:
    """Sets up the page, asks for the login where one is configured, and draws the page that was
    navigated to.
    """
    from vitprof.errors import VitprofError
    from vitprof.ui import gate, navigation, notifications, resources
    from vitprof.ui.texts import escaped

    st.set_page_config(page_title="vitprof", page_icon=navigation.PAGE_ICON, layout="wide")
    navigation.apply_style()
    navigation.add_scripts()
    page = st.navigation(
        navigation.pages(),
        position="hidden" if gate.needs_login() else "sidebar",
        expanded=navigation.FIRST_GROUP,
    )
    gate.require_login()
    try:
        resources.manager()
    except VitprofError as error:
        st.error(escaped(str(error)))
        st.stop()
    navigation.enter()
    navigation.draw_demonstration_note()
    page.run()
    # last, because a script run that the next one overtakes loses what it has not sent yet
    notifications.announce()
    if page.url_path:  # Profile, which has none, redraws itself when a run ends
        notifications.keep_looking()


if __name__ == "__main__":
    main()
elif __name__ == "app":
    # the server looks for `app` here: Streamlit behind the gate that decides who gets in
    from vitprof.ui import web

    app = st.App(__file__, **web.parts())
