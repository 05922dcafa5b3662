"""vitprof with the core alone, and with one extra: what that is for needs no other package."""

import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from PIL import Image

from tests import ROOT
from tests.cli.test_check import add
from tests.environments import Environment, Make, closure
from tests.export.patch.scripts import own_script
from tests.ui.tournaments import add_script_tournament
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED
from vitprof.store import RunStore

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))[
    "project"
]["optional-dependencies"]
SHORT = ("--device", "cpu", "--steps", "3", "--no-evaluate", "--batch-size", "16", "--threads", "1")


def core_lines() -> list[str]:
    """The packages of the second of the two lines that docs/installing.md has for the core."""
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    section = page.partition("## The core alone")[2].partition("\n## ")[0]
    commands = re.findall(r"^ {4}(python -m pip install .+)$", section, re.MULTILINE)
    assert commands[0] == "python -m pip install --no-deps vitprof"
    (second,) = commands[1:]
    return second.removeprefix("python -m pip install ").split()


def requirements(extra: str) -> Iterator[str]:
    """What an extra of pyproject.toml brings, with what those bring that it names."""
    for line in EXTRAS[extra]:
        if named := re.fullmatch(r"vitprof\[(.+)\]", line):
            for other in named[1].split(","):
                yield from requirements(other)
        else:
            yield line


@pytest.mark.measured
def test_an_environment_has_what_was_asked_for_and_nothing_else(environment: Make) -> None:
    made = environment("rich")
    script = (
        "from importlib import metadata; print(*sorted(d.name for d in metadata.distributions()))"
    )
    expected = {d.metadata["Name"] for d in closure(["rich"]).values()} | {"vitprof"}
    assert set(made.python(script).stdout.split()) == expected
    assert made.python("import rich.table, pygments").returncode == 0
    for name in ("numpy", "PIL", "tests"):
        assert f"No module named '{name}'" in made.python(f"import {name}").stderr


@pytest.mark.measured
def test_the_core_alone_watches_checks_and_exports(environment: Make) -> None:
    """By the two lines of the page, in an environment that has PyTorch and trains already."""
    made = environment(*core_lines(), "torch")
    (made.folder / "train.py").write_text(TRAINS)
    ended = made.run(
        "watch", "--name", "mine", "--", str(made.command.with_name("python")), "train.py"
    )
    assert (ended.returncode, ended.stdout) == (3, "trained\n"), ended.stderr
    with closing(RunStore()) as store:
        (run,) = store.runs()
        assert (run.name, run.summary.n_steps if run.summary else 0) == ("mine", N_STEPS)
        known = add(store, wait_s=0.0001)
    shown = made.run("runs")
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stderr
    checked = made.run("check", str(known), "--max-idle", "50%")
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    exported = made.run("export", str(run.id))
    assert (exported.returncode, exported.stdout.splitlines()[1][:7]) == (0, "1,mine,")
    assert made.run("bundle", str(run.id), "--output", "mine.vitprof").returncode == 0
    assert made.run("doctor").returncode == 0


N_STEPS = 30
TRAINS = f"""
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

samples = TensorDataset(torch.zeros({8 * N_STEPS}, 4), torch.zeros({8 * N_STEPS}, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(samples, batch_size=8):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
print("trained")
sys.exit(3)
"""
DASHBOARD = "python -m pip install 'vitprof[dashboard]'"
NEEDS_MORE = {
    "run": f"a job needs PyTorch, which is not installed: {DASHBOARD}",
    "selftest --quick": f"the package PIL is not installed: {DASHBOARD}",
    "datasets add x folder:.": f"the package PIL is not installed: {DASHBOARD}",
    "export 1 --format html": f"the package plotly is not installed: {DASHBOARD}",
    "demo --no-browser": f"the dashboard needs Streamlit, which is not installed: {DASHBOARD}",
    "--no-browser": f"the dashboard needs Streamlit, which is not installed: {DASHBOARD}",
    "metrics --textfile x.prom": "metrics need prometheus-client, which is not installed: "
    "python -m pip install 'vitprof[metrics]'",
    "mcp": "the package mcp is not installed: python -m pip install 'vitprof[mcp]'",
    "tournament --strategies all": "--strategies all: none of them can run here: the package torch is "
    "missing: pip install torch",
}
"""A command of the core that needs another package -> the line that it ends with."""


@pytest.mark.measured
def test_with_the_core_alone_what_needs_more_says_so_in_one_line(environment: Make) -> None:
    made = environment(*core_lines())
    with closing(RunStore()) as store:
        add(store, wait_s=0.0001)
    assert made.run("--help").returncode == 0
    assert made.run("doctor").returncode == 0, "nothing is wrong with the core alone"
    for words, line in NEEDS_MORE.items():
        ended = made.run(*words.split())
        assert (ended.returncode in (1, 2), ended.stderr) == (True, f"vitprof: {line}\n"), words
    database = {"VITPROF_DB": "postgresql+psycopg://nobody@localhost/none"}
    ended = made.run("watch", "--", "sh", "-c", "echo ran; exit 5", **database)
    assert (ended.returncode, ended.stdout) == (5, "ran\n")
    assert ended.stderr.startswith("vitprof: not watching: VITPROF_DB: ")
    assert ended.stderr.endswith("; python -m pip install 'vitprof[postgres]'\n")


def ran(made: Environment, *arguments: str, **variables: str) -> str:
    ended = made.run(*arguments, **variables)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def uses_dashboard(made: Environment) -> None:
    ran(made, "run", "--strategy", "memory", *SHORT)
    ran(made, "export", "1", "--format", "html", "--output", "report.html")


def uses_images(made: Environment) -> None:
    photos = ("--dataset", "photos", "--n-images", "64")
    ran(made, "run", "--strategy", "threads", *photos, *SHORT)


def uses_loader(name: str) -> Callable[[Environment], None]:
    def uses(made: Environment) -> None:
        for label in ("cat", "dog"):
            (made.folder / "pets" / label).mkdir(parents=True)
            for at in range(20):
                image = Image.fromarray(np.full((40, 40, 3), at, np.uint8))
                image.save(made.folder / "pets" / label / f"{at}.jpg")
        ran(made, "run", "--strategy", name, "--dataset", "folder:pets", *SHORT)

    return uses


def uses_slurm(made: Environment) -> None:
    ended = made.run("tournament", "--on", "slurm", "--nodes", "1", "--strategies", "memory")
    assert ended.returncode == 1
    assert ended.stderr.startswith("vitprof: slurm cannot be used here: ")


def uses_ray(made: Environment) -> None:
    assert made.python("import ray, vitprof.experiments.cluster.engines").returncode == 0


def uses_postgres(made: Environment) -> None:
    ended = made.run("runs", VITPROF_DB="postgresql+psycopg://nobody@127.0.0.1:1/none")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "Connection refused" in ended.stderr


def uses_metrics(made: Environment) -> None:
    ran(made, "metrics", "--textfile", "runs.prom")


def uses_patch(made: Environment) -> None:
    source = b"from torch.utils.data import DataLoader\n\nloader = DataLoader(samples)\n"
    with closing(RunStore()) as store:
        script = own_script(made.folder, source, "", "workers=4")
        waits = {UNCHANGED: 0.02, f"{OWN_SCRIPT}/workers=4": 0.0001}
        add_script_tournament(store, script, waits)
    assert ran(made, "patch", "1").endswith("+loader = DataLoader(samples, num_workers=4)\n")


def uses_mcp(made: Environment) -> None:
    """A client over real pipes is in tests/mcp_server; it is not needed in this environment."""
    listed = made.python(
        "import anyio; from pathlib import Path\n"
        "from vitprof.mcp_server.access import Access\n"
        "from vitprof.mcp_server.server import VitprofServer\n"
        "server = VitprofServer(Access(Path.cwd()), {})\n"
        "print(*(tool.name for tool in anyio.run(server.list_tools)))\n"
        "answer = anyio.run(server.call_tool, 'runs', {})\n"
        "print(answer.structured_content['total'])\n"
    )
    assert listed.returncode == 0, listed.stderr
    names, total = listed.stdout.splitlines()
    assert {"runs", "watch", "prove"} <= set(names.split())
    assert total == "0"
    ended = made.run("mcp", "--read-only")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


USES = {
    "core": (uses_patch, False),
    "dashboard": (uses_dashboard, True),
    "images": (uses_images, True),
    "dali": (uses_loader("dali"), True),
    "spdl": (uses_loader("spdl"), True),
    "litdata": (uses_loader("litdata"), True),
    "ray": (uses_ray, False),
    "slurm": (uses_slurm, False),
    "postgres": (uses_postgres, False),
    "metrics": (uses_metrics, False),
    "mcp": (uses_mcp, False),
}
"""Extra -> what it is for, and whether that needs the packages of a plain installation too."""


def test_each_extra_is_tried() -> None:
    assert {*USES, "all"} == set(EXTRAS)


@pytest.mark.measured
@pytest.mark.parametrize("extra", USES)
def test_each_extra_alone_does_what_it_is_for(extra: str, environment: Make) -> None:
    uses, needs_plain = USES[extra]
    base = ["core", "dashboard"] if needs_plain else ["core"]
    made = environment(
        *(line for name in dict.fromkeys([*base, extra]) for line in requirements(name))
    )
    assert made.run("doctor").returncode == 0
    uses(made)
