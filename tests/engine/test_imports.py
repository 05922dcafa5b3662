"""Imports without collections of garbage: what was imported is then out of the collector's sight."""

from __future__ import annotations

import gc

import pytest

from vitprof.engine.imports import without_collections


@pytest.mark.parametrize("on", [True, False])
def test_collector_is_off_meanwhile_and_as_before_afterwards(on: bool) -> None:
    frozen = gc.get_freeze_count()
    try:
        if not on:
            gc.disable()
        with without_collections():
            assert not gc.isenabled()
            made: list[list[int]] = [[] for _ in range(1000)]
        assert gc.isenabled() == on
        assert gc.get_freeze_count() >= frozen + len(made)
    finally:
        gc.enable()
