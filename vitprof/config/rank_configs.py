"""What a job of several ranks may be, and the config of each of its ranks."""

from dataclasses import replace

from vitprof.config import RunConfig, strategies
from vitprof.config.bounds import INJECTED_MS
from vitprof.cores import job_cores
from vitprof.datasets.catalog import DatasetInfo
from vitprof.errors import ConfigError

CANNOT: dict[str, tuple[object, str]] = {
    "isolation": ("thread", "ranks are processes; choose process"),
    "compile": (True, "it is not tried with several ranks; leave it out"),
    "loader_only": (True, "without training the ranks do not wait for each other; run one rank"),
    "skip_unreadable": (
        True,
        "a rank that leaves out a batch would wait for the others forever; repair the samples",
    ),
    "share_machine": (True, "its ranks take several devices; leave it out"),
    "loader": ("dali", "it is not tried with several ranks; choose another strategy"),
}
"""Field of `RunConfig` -> the value that does not go with several ranks, and why or what to do."""


def check_ranks(config: RunConfig, info: DatasetInfo, loader: str) -> None:
    """Checks that the ranks which `config` asks for can train together with `loader`.

    Raises `ConfigError` where they cannot.
    """
    if config.slow_rank is not None:
        slow_rank(config)
    if config.ranks == 1:
        return
    for field, (value, why) in CANNOT.items():
        # the config's own loader may be None, the strategy's then
        configured = loader if field == "loader" else getattr(config, field)
        if configured == value:
            raise ConfigError(field, value, f"ranks is {config.ranks}: {why}")
    if loader in strategies.PLUGGED["loaders"]:
        why = f"ranks is {config.ranks}: another package's loader gives each all samples"
        raise ConfigError("loader", loader, why)
    n_of_rank = info.n_train // config.ranks
    if config.batch_size > n_of_rank:
        has = f"the training set of {info.name} has {info.n_train} samples"
        few = f"{has}, {n_of_rank} for each of {config.ranks} ranks"
        raise ConfigError("batch_size", config.batch_size, few)


def slow_rank(config: RunConfig) -> tuple[int, float]:
    """Returns which rank waits before it reads a batch, and the milliseconds. Raises `ConfigError`."""
    number, _, wait = (config.slow_rank or "").partition(":")
    try:
        rank = int(number)
        ms = float(wait)
    except ValueError:
        rank = -1
        ms = 0.0
    if not 0 <= rank < config.ranks or not INJECTED_MS.least <= ms <= INJECTED_MS.most:
        allowed = (
            f"give RANK:MILLISECONDS, such as 1:20, of a rank below ranks, which is {config.ranks}"
        )
        raise ConfigError("slow_rank", config.slow_rank, allowed)
    if config.ranks == 1 or config.inject is not None or config.replay is not None:
        raise ConfigError(
            "slow_rank", config.slow_rank, "it goes with several ranks, without inject and replay"
        )
    return rank, ms


def config_of(config: RunConfig, rank: int) -> RunConfig:
    """Returns what one rank of the job `config` does, whose device is settled."""
    changes: dict[str, object] = {"slow_rank": None}
    if config.slow_rank is not None:
        slow, wait_ms = slow_rank(config)
        if rank == slow:
            changes["inject"] = f"read:{wait_ms:g}"
    if config.device.startswith("cuda:"):
        changes["device"] = f"cuda:{int(config.device.removeprefix('cuda:')) + rank}"
    # as many as PyTorch takes by itself would fight for the cores
    if not config.threads:
        changes["threads"] = max(1, job_cores() // config.ranks)
    return replace(config, **changes)  # type: ignore[arg-type]
