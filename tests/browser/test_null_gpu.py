"""A job on the null device, watched in a browser: GPU-util and memory are drawn while it trains."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT, nullcuda, server

pytestmark = [
    pytest.mark.nullcuda,
    pytest.mark.skipif(bool(nullcuda.missing()), reason=f"the null device {nullcuda.missing()}"),
]
LIMIT_MS = 120_000
DRAWN = """() => {
    const traces = document.querySelector('.st-key-live-gpu .js-plotly-plot')?.data ?? [];
    const most = name => Math.max(...(traces.find(trace => trace.name?.includes(name))?.y ?? [0]));
    return document.querySelector('.st-key-stop-button button') && most('util') > 10 && most('memory') > 0;
}"""
"""Both have points, and the job still trains."""


@pytest.mark.measured
def test_the_gpu_is_drawn_while_a_job_trains(page: Any, home: Path, tmp_path: Path) -> None:
    env = nullcuda.environment(tmp_path / "shm", kernel_us=100) | {"VITPROF_HOME": str(home)}
    with server.serve(ROOT / "app.py", env=env) as url:
        page.goto(
            f"{url}?device=cuda:0&strategy=memory&batch_size=64&threads=1&evaluate=false&seconds=600"
        )
        page.locator(".st-key-run-button button:visible").click()
        page.wait_for_function(DRAWN, timeout=LIMIT_MS)
        page.locator(".st-key-stop-button button:visible").first.click()
        page.get_by_text(re.compile("^Stopped")).first.wait_for(timeout=LIMIT_MS)
        page.locator(".st-key-verdict").wait_for()
        page.get_by_text("NVIDIA Null GPU").first.wait_for()
