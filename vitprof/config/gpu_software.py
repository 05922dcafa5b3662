"""Finds what is wrong with the software of this machine's GPUs, as far as that is possible without PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

import pynvml

from vitprof.config import gpu_findings as rules
from vitprof.config.gpu_findings import Finding, Version
from vitprof.config.torch_build import torch_build
from vitprof.telemetry import VisibleGpu


def unusable(card: str, driver: str, cuda_driver: Version | None) -> Finding | None:
    """Returns why the installed PyTorch cannot use the GPU `card`; None if it can or that is not known.

    `driver` is the driver's version, `cuda_driver` the newest CUDA that it supports.
    """
    build = torch_build()
    if build is None or build.rocm:
        return None
    if build.cuda is None:
        return rules.built_without_cuda(build.version, card)
    return rules.driver_too_old(build.version, build.cuda, driver, cuda_driver)


def findings(
    gpus: Sequence[VisibleGpu],
    environ: Mapping[str, str],
    *,
    driver: str = "",
    precision: str = "",
) -> tuple[Finding, ...]:
    """Returns what is wrong here for runs on `gpus`, the worst first; nothing if there are no GPUs.

    `driver`: version of their driver, "" if it is not known. `precision`: that of the run to come, "" to check them
    all.
    """
    return tuple(_findings(gpus, environ, driver, precision)) if gpus else ()


def _findings(gpus: Sequence[VisibleGpu], environ: Mapping[str, str], driver: str, precision: str) -> Iterator[Finding]:
    wrong = unusable(gpus[0].name, driver, gpus[0].cuda_driver)
    if wrong is not None:
        yield wrong
    cards = [(name, c) for name, c in dict.fromkeys((gpu.name, gpu.capability) for gpu in gpus) if c is not None]
    for card, capability in cards:
        if precision in ("", "bf16") and (emulated := rules.bf16_emulated(card, capability)) is not None:
            yield emulated
    if (old := pynvml_finding()) is not None:
        yield old
    yield from rules.changing_variables(environ)


def dali_wheel(gpus: Sequence[VisibleGpu], driver: str = "") -> str:
    """Returns the name of DALI's wheel for `gpus` and their driver's version, "" if that is not known."""
    return rules.dali_package(driver, gpus[0].cuda_driver) if gpus else rules.dali_package()


def installed_dali() -> tuple[str, str] | None:
    """Returns the name and version of DALI's wheel that is installed; None without one."""
    for name in rules.DALI:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return name, metadata.version(name)
    return None


def dali_finding(gpus: Sequence[VisibleGpu], driver: str = "") -> Finding | None:
    """Returns a finding if the installed wheel of DALI is too new for the driver of `gpus`, else None."""
    dali = installed_dali()
    return rules.dali_too_new(dali[0], driver, gpus[0].cuda_driver) if dali and gpus else None


def pynvml_finding() -> Finding | None:
    """Returns a finding if the old package pynvml hides nvidia-ml-py, else None.

    The old package is a folder `pynvml`, which Python prefers to nvidia-ml-py's file `pynvml.py`. From version 12 on it
    has no such folder and is harmless.
    """
    if not hasattr(pynvml, "__path__"):
        return None
    try:
        return rules.old_pynvml(metadata.version("pynvml"))
    except metadata.PackageNotFoundError:
        return rules.old_pynvml("")
