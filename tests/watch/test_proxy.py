"""What passes for another object."""

import copy
import pickle
from collections.abc import Iterator, Sized
from typing import Any

import pytest

from vitprof.watch.proxy import Proxy, passing_for


class Loader:
    """A loader."""

    def __init__(self) -> None:
        self.epoch = 0
        self.sampler = [3]

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def passing(wrapped: Any) -> Any:
    return passing_for(Proxy, wrapped)(wrapped)


def test_it_passes_for_what_it_stands_for() -> None:
    loader = Loader()
    proxy = passing(loader)
    assert (isinstance(proxy, Loader), isinstance(proxy, Sized)) == (True, True)
    assert (len(proxy), proxy.__doc__) == (5, "A loader.")
    assert (repr(proxy), dir(proxy)) == (repr(loader), dir(loader))
    assert proxy.sampler is loader.sampler
    proxy.set_epoch(3)
    proxy.sampler = None
    assert (loader.epoch, loader.sampler) == (3, None)
    del proxy.sampler
    assert not hasattr(loader, "sampler")
    with pytest.raises(AttributeError, match="'Loader' object has no attribute 'nothing'"):
        proxy.nothing  # noqa: B018


def test_pickled_or_copied_it_is_what_it_stands_for() -> None:
    loader = Loader()
    loader.epoch = 2
    proxy = passing(loader)
    for made in (pickle.loads(pickle.dumps(proxy)), copy.copy(proxy), copy.deepcopy(proxy)):
        assert (type(made), made is loader, made.epoch) == (Loader, False, 2)
    assert copy.copy(proxy).sampler is loader.sampler
    assert copy.deepcopy(proxy).sampler is not loader.sampler


def test_it_has_no_more_than_that() -> None:
    generator = passing(i for i in range(3))
    assert (isinstance(generator, Sized), hasattr(generator, "__len__")) == (False, False)
    with pytest.raises(TypeError, match="has no len"):
        len(generator)
    assert type(generator) is type(passing(i for i in range(3))), "one class for a kind"
    listed = passing([1, 2])
    assert (listed[1], 2 in listed, len(listed)) == (2, True, 2)
