"""The engines that give nodes to rounds: Ray, and Slurm or this machine by submitit. Each task has a whole node."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vitprof import home
from vitprof.errors import ConfigError, JobError, one_line
from vitprof.experiments.cluster.rounds import run_round

PASSED_ON = ("VITPROF_DB", "VITPROF_HOME", "VITPROF_DATA_ROOTS", "PYTHONPATH")
"""Variables that tasks get where their node does not set them."""
CHECK_S = 30.0
"""How long (s) Slurm may take to say whether it knows a job."""


class LostError(JobError):
    """Raised where a task ended without a result: its node is gone, or it was pre-empted."""


class Task(Protocol):
    """A round that was given to a node."""

    def result(self) -> str | None:
        """Returns what `run_round` returned; None while it runs. Raises `LostError`, and `JobError` where it failed."""

    def cancel(self) -> None:
        """Ends it now."""


class Engine(Protocol):
    """What gives nodes to rounds."""

    def start(self, tournament_id: int, number: int, keys: Sequence[str]) -> Task | None:
        """Gives a round to a node; returns None where none is free. Raises `JobError`."""

    def close(self) -> None:
        """Lets go of the engine."""


def open_engine(on: str, nodes: int, options: Mapping[str, str]) -> Engine:
    """Returns the engine `on`: "ray", "ray://HOST:PORT", "slurm" or "local".

    `nodes`: the most to use. `options`: further parameters of Slurm's sbatch. Raises `ConfigError` for
    another name or a missing package, and `JobError` where the engine cannot be reached.
    """
    if options and on != "slurm":
        raise ConfigError("slurm", ",".join(options), "it goes with --on slurm")
    if on.partition(":")[0] == "ray":
        return RayEngine(on, nodes)
    if on in ("slurm", "local"):
        return SubmititEngine(on, nodes, options)
    raise ConfigError("on", on, "choose one of ray, ray://HOST:PORT, slurm, local")


def _variables() -> dict[str, str]:
    """Returns the variables that a task gets, with which it finds the store and this package."""
    variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    root = str(Path(__file__).parents[3])
    if "site-packages" not in root:  # a checkout that is not installed
        path = [root, variables.get("PYTHONPATH")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return variables


def _missing(package: str, extra: str) -> ConfigError:
    return ConfigError(
        "on", extra, f"it needs the package {package}: python -m pip install {package}"
    )


class RayEngine:
    """The nodes of a Ray cluster: the one at an address, or a new one of this machine alone."""

    def __init__(self, address: str, nodes: int) -> None:
        try:
            import ray
        except ImportError:
            raise _missing("ray", "ray") from None
        self._ray: Any = ray
        self._most = nodes
        self._in_use = dict[str, _RayTask]()
        """Id of a node -> the task that it runs."""
        where = address if address.startswith("ray://") else os.environ.get("RAY_ADDRESS")
        self._variables = _variables()
        try:
            self._ray.init(
                address=where,
                runtime_env={"env_vars": self._variables},
                log_to_driver=False,
                logging_level="ERROR",
                ignore_reinit_error=True,
            )
        except Exception as error:  # of many kinds
            problem = f"Ray cannot be reached at {where or 'this machine'}"
            raise JobError(f"{problem}: {one_line(error)}") from error

    def start(self, tournament_id: int, number: int, keys: Sequence[str]) -> Task | None:
        self._in_use = {node: task for node, task in self._in_use.items() if task.runs}
        node = self._free_node()
        if node is None:
            return None
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node_id = node["NodeID"]
        # the whole node: two tasks on one would disturb each other
        remote = self._ray.remote(run_round).options(
            num_cpus=node["Resources"]["CPU"],
            num_gpus=node["Resources"].get("GPU", 0),
            max_retries=0,  # what is lost is given to a node again by the controller
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        name = f"{node.get('NodeManagerHostname', node_id)}/{node_id[:8]}"
        reference = remote.remote(tournament_id, number, list(keys), name, self._variables)
        task = _RayTask(self._ray, reference)
        self._in_use[node_id] = task
        return task

    def _free_node(self) -> dict[str, Any] | None:
        """Returns what Ray says of a node that no task of ours runs on; None where there is none."""
        if len(self._in_use) >= self._most:
            return None
        for node in self._ray.nodes():
            computes = node["Alive"] and node["Resources"].get("CPU")
            if computes and node["NodeID"] not in self._in_use:
                return dict(node)
        return None

    def close(self) -> None:
        self._ray.shutdown()


class _RayTask:
    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray = ray
        self._reference = reference
        self.runs = True

    def result(self) -> str | None:
        ready, _ = self._ray.wait([self._reference], timeout=0)
        if not ready:
            return None
        self.runs = False
        try:
            return str(self._ray.get(self._reference))
        except self._ray.exceptions.RayTaskError as error:
            raise JobError(one_line(error.cause)) from error
        except self._ray.exceptions.RayError as error:
            # its node or its process is gone
            raise LostError(one_line(error).partition(". ")[0]) from error

    def cancel(self) -> None:
        self.runs = False
        self._ray.cancel(self._reference, force=True)


class SubmititEngine:
    """Jobs of Slurm, each with a node for itself; or, as "local", processes of this machine, one after another."""

    def __init__(self, cluster: str, nodes: int, options: Mapping[str, str]) -> None:
        try:
            import submitit
        except ImportError:
            raise _missing("submitit", "slurm") from None
        self._most = nodes if cluster == "slurm" else 1
        self._running: list[_SubmititTask] = []
        folder = home.ensure_dir(home.home() / "cluster")
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
            if cluster == "slurm":
                more = {"exclusive": "", **options}
                self._executor.update_parameters(
                    name="vitprof", nodes=1, slurm_additional_parameters=more
                )
            else:
                self._executor.update_parameters(timeout_min=24 * 60)
        except (RuntimeError, ValueError) as error:
            raise JobError(f"{cluster} cannot be used here: {one_line(error)}") from error

    def start(self, tournament_id: int, number: int, keys: Sequence[str]) -> Task | None:
        self._running = [task for task in self._running if task.runs]
        if len(self._running) >= self._most:
            return None
        try:
            job = self._executor.submit(
                run_round, tournament_id, number, list(keys), "", _variables()
            )
        except Exception as error:  # sbatch refused it
            raise JobError(f"the job was not taken: {one_line(error)}") from error
        self._running.append(_SubmititTask(job))
        return self._running[-1]

    def close(self) -> None:
        for task in self._running:
            if task.runs:
                task.cancel()


class _SubmititTask:
    def __init__(self, job: Any) -> None:
        self._job = job
        self.runs = True

    def result(self) -> str | None:
        if not self._job.done() and not self._is_gone():
            return None
        self.runs = False
        paths = self._job.paths
        if not paths.result_pickle.exists():
            job = f"job {self._job.job_id}"
            raise LostError(f"{job} ended without a result; its logs are in {paths.folder}")
        failure = self._job.exception()
        if failure is not None:
            # submitit puts the task's traceback in front of the error's own line
            lines = str(failure).strip().splitlines()
            raise JobError(lines[-1] if lines else one_line(failure))
        return str(self._job.result())

    def _is_gone(self) -> bool:
        """Returns whether Slurm no longer knows the job.

        Where Slurm keeps no accounting, the job's state does not say so.
        """
        if self._job.state != "UNKNOWN" or shutil.which("squeue") is None:
            return False
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            command = ["squeue", "--noheader", "--jobs", str(self._job.job_id)]
            listed = subprocess.run(
                command, capture_output=True, text=True, timeout=CHECK_S, check=False
            )
            return not listed.stdout.strip()
        return False

    def cancel(self) -> None:
        self.runs = False
        self._job.cancel()
