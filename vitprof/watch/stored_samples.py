"""The samples of a plan to convert, in place of a dataset's own, in trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitprof.forms import module_of, stored
from vitprof.forms.script.cut import Cut
from vitprof.forms.script.dataset import spread
from vitprof.watch.proxy import Proxy


class StoredSamples(Proxy):
    """A proxy of a dataset whose samples are those of a plan, in a form or as the dataset reads
    them, over and over.
    """

    def __init__(self, dataset: Any, given: Mapping[str, Any]) -> None:
        """`given`: the "form" (empty: as the dataset reads them), its "folder", "n" samples of
        "samples", and where the dataset is cut: "number", "same".
        """
        super().__init__(dataset)
        if len(dataset) != given["samples"]:
            raise ValueError(
                f"the plan's Dataset had {given['samples']} samples, this one has {len(dataset)}"
            )
        self._vitprof_given = dict(given)
        self._vitprof_chosen = spread(given["samples"], given["n"])
        self._vitprof_read: Any = None

    def __reduce_ex__(self, _: Any) -> tuple[Any, tuple[Any, ...]]:
        return StoredSamples, (self._vitprof_wrapped, self._vitprof_given)

    def __len__(self) -> int:
        return len(self._vitprof_wrapped)

    def __getitem__(self, index: Any) -> Any:
        given = self._vitprof_given
        number = index % len(self._vitprof_chosen)
        if not given["form"]:
            return self._vitprof_wrapped[self._vitprof_chosen[number]]
        if self._vitprof_read is None:
            # in each process, as some libraries' threads do not survive a fork
            rest = Cut(self._vitprof_wrapped, given["number"], given["same"]).rest
            reader = module_of(given["form"]).Reader
            self._vitprof_read = stored.Samples(given["folder"], reader, rest)
        return self._vitprof_read[number]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Returns the samples of a batch: PyTorch calls this method where a dataset has it."""
        together = getattr(self._vitprof_wrapped, "__getitems__", None)
        if together is None or self._vitprof_given["form"]:
            return [self[index] for index in indices]
        n = len(self._vitprof_chosen)
        return list(together([self._vitprof_chosen[index % n] for index in indices]))
