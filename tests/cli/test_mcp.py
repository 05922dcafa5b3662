"""`mcp`: what it does without a client, and without the package."""

import subprocess
import sys

from tests import ROOT
from tests.command_line import Call, succeeds


def without_the_package(*options: str) -> subprocess.CompletedProcess[str]:
    script = (
        f"import sys; sys.modules['mcp'] = None; sys.argv = {['vitprof', 'mcp', *options]!r};"
        "from vitprof.__main__ import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_the_skill_is_printed(call: Call) -> None:
    text = succeeds(call, "mcp", "--skill")
    assert text.startswith("---\nname: vitprof\ndescription: ")
    assert 60 < len(text.splitlines()) <= 110


def test_the_skill_needs_no_package() -> None:
    """Whoever writes it into an agent's folder need not have the extra."""
    ended = without_the_package("--skill")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_without_the_package_it_says_what_to_install() -> None:
    ended = without_the_package()
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert "[mcp]'" in ended.stderr
