"""The engines that give nodes to rounds: Ray, and Slurm or this machine by submitit. Each task has a
whole node.

Both keep what they are told of a job: Ray in logs that every user of a node reads, submitit in files.
The address of the store may have a password, so it goes another way: to Ray's workers as an argument
of the task, which is in memory alone, to submitit's in a file that only this user reads.
"""

import atexit
import contextlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from vitprof import home
from vitprof.attempts import Attempt
from vitprof.errors import ConfigError, JobError, VitprofError, one_line
from vitprof.experiments.cluster.rounds import run_round, run_round_of_file
from vitprof.masking import masked

PASSED_ON = ("VITPROF_HOME", "VITPROF_DATA_ROOTS", "PYTHONPATH")
"""Variables that tasks get where their node does not set them."""
PASSED_IN_SECRET = ("VITPROF_DB",)
"""Those of them that may have a password."""
NODES_WITHIN_S = 5.0
"""How long (s) the head of a Ray cluster may take to name its nodes."""
CLOSE_WITHIN_S = 5.0
"""How long (s) Ray may take to let go of a cluster whose head is gone."""
CHECK_S = 30.0
"""How long (s) Slurm may take to say whether it knows a job."""


class LostError(JobError):
    """Raised where a task ended without a result: its node is gone, or it was pre-empted."""


class EngineGoneError(JobError):
    """Raised where the engine is gone: nothing more can be given to it, and its tasks can be neither
    waited for nor cancelled.
    """


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

    def check(self) -> None:
        """Raises `EngineGoneError` where the engine is gone."""

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


def _variables(names: Sequence[str]) -> dict[str, str]:
    """Returns those of the variables `names` that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def _open_variables() -> dict[str, str]:
    """Returns the variables that a task gets and anybody may read, with which it finds this
    package.
    """
    variables = _variables(PASSED_ON)
    root = str(Path(__file__).parents[3])
    if "site-packages" not in root:  # a checkout that is not installed
        path = [root, variables.get("PYTHONPATH")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return variables


def _missing(package: str, extra: str) -> ConfigError:
    return ConfigError(
        "on", extra, f"it needs the package {package}: python -m pip install {package}"
    )


class RayHead:
    """The process of a Ray cluster that knows its nodes, by its address.

    Once it is gone Ray ends the programs that use it, after a minute and without an error in Python
    (`gcs_rpc_server_reconnect_timeout_s` is 60): whoever has something left to say must notice first.
    """

    LOOK_EVERY_S = 2.0
    CONNECT_WITHIN_S = 1.0
    MOST_LOOKS = 15
    """Looks in which it does not answer, until it is gone: 30 to 45 s. One that is started again is back by then."""

    def __init__(self, address: str) -> None:
        """`address`: HOST:PORT."""
        self.address = address
        self.is_gone = False
        self._unanswered = 0
        self._look_at_s = 0.0

    def look(self) -> None:
        """Looks whether it is gone, at most every `LOOK_EVERY_S`."""
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + self.LOOK_EVERY_S
        self._unanswered = 0 if self._answers() else self._unanswered + 1
        self.is_gone = self._unanswered >= self.MOST_LOOKS

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), self.CONNECT_WITHIN_S).close()
        except (OSError, ValueError):
            return False
        return True


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
        self._variables = _open_variables() | _variables(PASSED_IN_SECRET)
        try:
            self._ray.init(
                address=where,
                runtime_env={"env_vars": _open_variables()},
                log_to_driver=False,
                logging_level="ERROR",
                ignore_reinit_error=True,
            )
        except Exception as error:  # of many kinds
            problem = f"Ray cannot be reached at {where or 'this machine'}"
            raise JobError(f"{problem}: {one_line(error)}") from error
        if where is not None and where.startswith("ray://"):
            # a program outside of the cluster reaches it by an address of its own
            head = where.removeprefix("ray://")
        else:
            head = self._ray.get_runtime_context().gcs_address
        self._head = RayHead(head)
        self._asked_nodes: Attempt[list[dict[str, Any]]] | None = None
        """A question for the nodes that was not answered in time."""

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
        for node in self._nodes():
            computes = node["Alive"] and node["Resources"].get("CPU")
            if computes and node["NodeID"] not in self._in_use:
                return dict(node)
        return None

    def _nodes(self) -> list[dict[str, Any]]:
        """Returns what Ray says of the nodes; nothing while it does not answer."""
        asked = self._asked_nodes or Attempt(self._ray.nodes, "vitprof-ray-nodes")
        self._asked_nodes = asked
        try:
            nodes = asked.result(NODES_WITHIN_S)
        except TimeoutError:
            return []
        self._asked_nodes = None
        return nodes

    def check(self) -> None:
        self._head.look()
        if self._head.is_gone:
            raise EngineGoneError(f"the head of the Ray cluster, {self._head.address}, is gone")

    def close(self) -> None:
        if not self._head.is_gone:
            self._ray.shutdown()
            return
        # it may wait for the head until Ray ends this program, which has still to say how to go on
        atexit.unregister(self._ray.shutdown)
        with contextlib.suppress(TimeoutError):
            Attempt(self._ray.shutdown, "vitprof-ray-shutdown").result(CLOSE_WITHIN_S)


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
            raise JobError(masked(one_line(error.cause))) from error
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
        self._folder = _folder_for_submitit()
        self._variables = self._folder / "variables.json"
        try:
            self._set_up(submitit, cluster, options)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _set_up(self, submitit: Any, cluster: str, options: Mapping[str, str]) -> None:
        variables = _open_variables() | _variables(PASSED_IN_SECRET)
        home.private_file(self._variables).write_text(json.dumps(variables), encoding="utf-8")
        try:
            self._executor = submitit.AutoExecutor(folder=self._folder, cluster=cluster)
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
                run_round_of_file, tournament_id, number, list(keys), str(self._variables)
            )
        except Exception as error:  # sbatch refused it
            raise JobError(f"the job was not taken: {one_line(error)}") from error
        self._running.append(_SubmititTask(job))
        return self._running[-1]

    def check(self) -> None:
        """Does nothing: a job that is gone is lost, and so is each one after it."""

    def close(self) -> None:
        for task in self._running:
            if task.runs:
                task.cancel()
        self._variables.unlink(missing_ok=True)
        for _ in range(REMOVALS):
            shutil.rmtree(self._folder, ignore_errors=True)
            if not self._folder.exists():
                break
            # a task that is just ending writes its result
            time.sleep(REMOVAL_EVERY_S)


REMOVALS = 20
REMOVAL_EVERY_S = 0.25
"""How often, and how long apart (s), it is tried to remove the files of a tournament."""


def _folder_for_submitit() -> Path:
    """Returns a new folder for the files of submitit, which only this user reads; removes those of
    tournaments whose program is gone. Raises `VitprofError`.
    """
    top = home.ensure_dir(home.home() / "cluster")
    # a home may be shared by many hosts
    prefix = f"tournament-{platform.node()}-{home.process_space()}-"
    for path in top.iterdir():
        owner = re.fullmatch(rf"{re.escape(prefix)}(\d+)-\w+", path.name)
        if owner and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            # of a version that kept all files here
            path.unlink(missing_ok=True)
    try:
        return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=top))
    except OSError as error:
        raise JobError(f"cannot write to {top}: {error.strerror or error}") from error


class _SubmititTask:
    def __init__(self, job: Any) -> None:
        self._job = job
        self.runs = True

    def result(self) -> str | None:
        if not self._job.done() and not self._is_gone():
            return None
        self.runs = False
        if not self._job.paths.result_pickle.exists():
            job = f"job {self._job.job_id}"
            raise LostError(f"{job} ended without a result; {self._kept_log()}")
        failure = self._job.exception()
        if failure is not None:
            # submitit puts the task's traceback in front of the error's own line
            lines = str(failure).strip().splitlines()
            line = masked(lines[-1]) if lines else one_line(failure)
            raise JobError(f"{line}; {self._kept_log()}")
        return str(self._job.result())

    def _kept_log(self) -> str:
        """Returns where what the task printed can be read once the tournament's files are gone."""
        path = home.log_dir() / f"cluster-{self._job.job_id}.log"
        try:
            home.ensure_dir(path.parent)
            with home.open_log(path) as log:
                for printed in (self._job.paths.stdout, self._job.paths.stderr):
                    if printed.exists():
                        log.write(printed.read_bytes())
        except (OSError, VitprofError) as error:
            return f"its log was not kept ({one_line(error)})"
        return f"its log is {path}"

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
