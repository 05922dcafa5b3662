"""The pages for a browser that is not let in: the question for the token, or what the operator has to do."""

from __future__ import annotations

from vitprof.ui.gate.token import MADE_AT_START, SHORTEST, VARIABLE

CLOSED = (
    f"it listens for other machines too, and neither a token ({VARIABLE}) nor a login ([auth] in "
    ".streamlit/secrets.toml) is set: no page is shown and no job is started"
)
"""Why nobody gets in, as printed at the start and shown on the page."""
WAYS = (
    "Leave out the address, so that it listens on 127.0.0.1 only, and use SSH: ssh -N -L 8501:localhost:8501 HOST",
    f"Set {VARIABLE} to {SHORTEST} characters or more before the start, or to {MADE_AT_START} for one that is printed. "
    "The page then asks for it.",
    "Configure a login for st.login, [auth] in .streamlit/secrets.toml.",
)
"""What the operator can do about it."""
FIELD = "token"
"""The name of the field that the token is typed into."""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>vitprof</title>
<meta name="viewport" content="width=device-width"><meta name="robots" content="noindex">
<style>:root{{color-scheme:light dark}}body{{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:12vh auto;
padding:0 1rem}}input,button{{font:inherit;padding:.4rem .6rem}}li{{margin:.4rem 0}}</style></head>
<body><main><h1>vitprof</h1>{body}</main></body></html>
"""


def question(said: str = "") -> str:
    """Returns the page that asks for the token; `said` says what was wrong with the last one."""
    told = f'<p role="alert">{said}</p>' if said else ""
    return PAGE.format(
        body=f'{told}<form method="post"><p><label for="{FIELD}">Token of this dashboard</label></p>'
        f'<p><input id="{FIELD}" name="{FIELD}" type="password" autocomplete="current-password" required autofocus> '
        f"<button>Open</button></p></form><p>Whoever started it set {VARIABLE}, or saw the token at the start.</p>"
    )


def closed() -> str:
    """Returns the page of a dashboard that nobody may use as it was started."""
    ways = "".join(f"<li>{way}</li>" for way in WAYS)
    return PAGE.format(body=f"<p>This dashboard is closed: {CLOSED}. Whoever started it can:</p><ul>{ways}</ul>")
