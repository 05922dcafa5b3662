"""A proxy: an object that behaves as another one."""

import copy
from typing import Any

PASSED_ON = (
    *(
        "__len__",
        "__length_hint__",
        "__getitem__",
        "__setitem__",
        "__delitem__",
        "__contains__",
        "__reversed__",
    ),
    *("__call__", "__enter__", "__exit__", "__add__", "__or__"),
)
"""Methods that Python looks up in an object's class. A proxy has those that the class of its object has."""
_CLASSES: dict[tuple[type, type], type] = {}


class Proxy:
    """A proxy of `wrapped`: for `isinstance`, attributes and `repr`. Pickling or copying it gives `wrapped` itself. Its
    own attributes begin with `_vitprof`.
    """

    def __init__(self, wrapped: Any) -> None:
        object.__setattr__(self, "_vitprof_wrapped", wrapped)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._vitprof_wrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_vitprof"):  # not set yet, or no longer
            raise AttributeError(name)
        return getattr(self._vitprof_wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_vitprof"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._vitprof_wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._vitprof_wrapped, name)

    def __dir__(self) -> list[str]:
        return dir(self._vitprof_wrapped)

    def __repr__(self) -> str:
        return repr(self._vitprof_wrapped)

    def __copy__(self) -> Any:
        return copy.copy(self._vitprof_wrapped)

    def __reduce_ex__(self, _: Any) -> tuple[Any, tuple[Any]]:
        return _itself, (self._vitprof_wrapped,)


def passing_for(base: Any, wrapped: Any) -> Any:
    """Returns a subclass of `base`, a class of proxies, with the special methods that the class of `wrapped` has."""
    kind = type(wrapped)
    if (known := _CLASSES.get((base, kind))) is not None:
        return known
    methods = {
        name: _passed_on(name) for name in PASSED_ON if getattr(kind, name, None) is not None
    }
    if hasattr(kind, "__next__") and (own := getattr(base, "_vitprof_next", None)) is not None:
        methods["__next__"] = own
    made = _CLASSES[base, kind] = type(base.__name__, (base,), {"__doc__": kind.__doc__, **methods})
    return made


def _passed_on(name: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        wrapped = self._vitprof_wrapped
        return getattr(type(wrapped), name)(wrapped, *args)

    method.__name__ = name
    return method


def _itself(wrapped: Any) -> Any:
    return wrapped
