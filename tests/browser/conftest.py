"""A real server and a real browser for the tests in this directory. `page` fails a test that leaves an error in the
browser's console or a request unanswered."""

import contextlib
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT, server
from tests.engine_fixtures import digits_home  # noqa: F401

_CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Programs, best first: the shell without windows is what Playwright itself runs headless. It takes less CPU time."""
_OFF = (
    "AimEnabled,AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,HttpsFirstBalancedModeAutoEnable,"
    "HttpsUpgrades,LensOverlay,MediaRouter,NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,"
    "PreconnectToSearch,PreloadTopChromeWebUI,WebUIOmniboxAimPopup,WebUIOmniboxPopup"
)
"""Chromium takes the last list that it is given, so what Playwright switches off for tests on a local server is here
again. The last three load pages for the address bar into every new window, so for every context: 0.9 s of a core each
time, half as much as a page of the dashboard takes."""
_CHROMIUM_ARGS = (
    "--headless --no-sandbox --disable-gpu --disable-gpu-compositing --in-process-gpu --disable-background-networking "
    f"--disable-component-update --disable-sync --no-first-run --process-per-site --disable-features={_OFF}"
).split()

POLL_MS = 100
"""Between two looks at a page. By default there is one for each frame, 60 a second, for which Chromium lays it out."""

Picture = Callable[..., None]
Serve = Callable[..., AbstractContextManager[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds to the report of a failed test what its page said, and what the servers printed."""
    report = yield
    page = getattr(item, "funcargs", {}).get("page")
    if report.failed:
        report.sections += [
            ("server", Path(log.name).read_text(errors="replace")[-8000:]) for log in server.LOGS
        ]
    if report.when == "call" and report.failed and page is not None:
        with contextlib.suppress(
            Exception
        ):  # such as a page that has crashed: the failure itself must be told
            report.sections.append(
                ("page", f"{page.url}\n{page.inner_text('body', timeout=5_000)}")
            )
    return report


def _unavailable(reason: str) -> None:
    if os.environ.get("VITPROF_REQUIRE_BROWSER") == "1":
        pytest.fail(f"VITPROF_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


PROBE = re.compile(
    r"/(compare|history|selftest|strategies|tournament)/_stcore/(health|host-config)$"
)
"""Streamlit's browser part looks for its server below a page's own path first, and logs a 404 for each look."""


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> None:
    """In place of the check around every test: Chromium starts helpers as it likes; `serve` looks after its server."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """The system's Chromium for the tests of this directory; skips where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _unavailable("playwright is not installed")
    executable = next(filter(None, map(shutil.which, _CHROMIUMS)), None)
    if executable is None:
        _unavailable(f"none of {', '.join(_CHROMIUMS)} is on PATH")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=_CHROMIUM_ARGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, digits_home: Path) -> Path:  # noqa: F811
    """A VITPROF_HOME for the tests of a file, in which `digits` has been made."""
    made = tmp_path_factory.mktemp("home")
    (made / "data").symlink_to(digits_home / "data")
    return made


@pytest.fixture(scope="module")
def dashboard(serve: Serve, home: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a dashboard for the tests of a file. With `WARM` in the file PyTorch stays loaded between jobs."""
    env = {
        "VITPROF_HOME": str(home),
        "VITPROF_WARM": str(int(getattr(request.module, "WARM", False))),
    }
    with serve(ROOT / "app.py", env=env) as url:
        yield url


@pytest.fixture(scope="package")
def kept(browser: Any, host: server.Host) -> Iterator[Any]:
    """A blank page of the address that servers have here, open all the time. It keeps the process in which Chromium
    draws that address, and what is loaded and compiled there: a page of the dashboard then takes 1.7 s of CPU time
    instead of 2.9."""
    context = browser.new_context(reduced_motion="reduce", viewport={"width": 1280, "height": 900})
    page = context.new_page()
    address = f"http://127.0.0.1:{host.port}/"
    page.route(address, lambda route: route.fulfill(body="", content_type="text/html"))
    page.goto(address)
    yield page
    context.close()


@pytest.fixture
def page(kept: Any) -> Iterator[Any]:
    """A page of a browser that remembers nothing of the test before. `page.problems` collects what went wrong, there
    and on pages that are given to `page.watch`; anything in it fails the test."""
    page = kept.context.new_page()
    page.set_default_timeout(60_000)
    page.wait_for_function = functools.partial(page.wait_for_function, polling=POLL_MS)
    problems: list[str] = []
    page.problems = problems
    page.watch = lambda other: _watch(other, problems)
    page.watch(page)
    yield page
    left = list(problems)
    for opened in kept.context.pages:
        if opened is not kept:
            opened.close()
    kept.context.clear_cookies()
    kept.evaluate("localStorage.clear()")
    kept.context.set_offline(False)
    assert not left, "\n".join(left)


def _watch(page: Any, problems: list[str]) -> None:
    """Collect what goes wrong on `page`: errors on its console, replies of the server, requests that fail."""

    def add(what: str, url: str) -> None:
        if not PROBE.search(url):
            problems.append(what)

    page.on(
        "console", lambda m: add(m.text, m.location.get("url", "")) if m.type == "error" else None
    )
    page.on("pageerror", lambda error: problems.append(f"uncaught: {error}"))
    page.on(
        "response",
        lambda reply: (
            add(f"{reply.status} {reply.url}", reply.url) if reply.status >= 400 else None
        ),
    )
    # what a reload or the end breaks off has not failed
    page.on(
        "requestfailed",
        lambda r: None if r.failure == "net::ERR_ABORTED" else add(f"{r.failure} {r.url}", r.url),
    )


@pytest.fixture(scope="session")
def picture() -> Picture:
    """`picture(page, name)` saves NAME.png in the directory that `VITPROF_SCREENSHOTS` names, if any.
    The pictures in README are made so: `VITPROF_SCREENSHOTS=docs python -m pytest tests/browser`."""
    directory = os.environ.get("VITPROF_SCREENSHOTS")

    def take(page: Any, name: str, height: int = 900) -> None:
        if directory is None:
            return
        page.set_viewport_size({"width": 1280, "height": height})
        page.mouse.move(640, 2)  # no help text in the way, and no toasts
        page.add_style_tag(
            content="[data-testid=stToastContainer], [data-testid=stToast] { display: none }"
        )
        page.emulate_media(color_scheme="light")
        page.wait_for_timeout(1500)  # Plotly's own transitions
        page.screenshot(path=str(ROOT / directory / f"{name}.png"))
        page.set_viewport_size({"width": 1280, "height": 900})

    return take


@pytest.fixture(scope="package")
def host() -> Iterator[server.Host]:
    """Forks the servers of this directory's tests."""
    kept = server.Host()
    yield kept
    kept.close()


@pytest.fixture(scope="package")
def serve(host: server.Host) -> Serve:
    """`with serve(script, env, query="", flags=()) as url:`; may be used from fixtures of a file and of a test."""
    return functools.partial(server.serve, start=host.start, wanted_port=host.port)
