"""The calls in a script's source, and which of them make a DataLoader."""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst import matchers, metadata

from vitprof.export.patch.wanted import NoPatch

POSITIONAL = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)
"""Arguments of PyTorch's DataLoader that may be given by position, in their order."""
DATALOADERS = frozenset(
    {
        "torch.utils.data.DataLoader",
        "torch.utils.data.dataloader.DataLoader",
        "torchdata.stateful_dataloader.StatefulDataLoader",
        "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader",
    }
)
STARRED = ("torch.utils.data", "torch.utils.data.dataloader")
"""Modules that give the name DataLoader to a script which imports all of their names."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SourceCall:
    """A call in a source."""

    node: cst.Call
    line: int
    """From 1: where it begins."""
    last_line: int
    callee: str
    """What is called, as it is written: `torch.utils.data.DataLoader`."""
    is_dataloader: bool
    """Whether that is known, by the script's imports, to be PyTorch's DataLoader."""
    given: frozenset[str] | None
    """PyTorch's names of the arguments, without the dataset; None where `*` or `**` hides some."""
    target: str
    """What takes its value, as it is written: a variable, a key, or the function that returns it."""
    function: str
    """Name of the function around it; "" outside of any."""
    loop_names: frozenset[str]
    """Variables of loops around it, within that function, that its arguments name."""

    def spans(self, line: int) -> bool:
        return self.line <= line <= self.last_line


@dataclass(frozen=True, slots=True)
class Source:
    """A script's source, read so that it can be written again with every comment and space."""

    wrapper: metadata.MetadataWrapper
    bom: bytes
    """The mark at its beginning, which the parser drops."""
    calls: tuple[SourceCall, ...]
    lines_of: Mapping[str, Sequence[int]]
    """Name of a function or method -> the lines that call it."""

    @property
    def module(self) -> cst.Module:
        return self.wrapper.module

    def code(self, node: cst.CSTNode) -> str:
        """Returns a part of it in one line."""
        return " ".join(self.module.code_for_node(node).split())

    def line(self, node: cst.CSTNode) -> int:
        """Returns the line, from 1, in which a part of it begins."""
        positions = self.wrapper.resolve(metadata.PositionProvider)
        return int(positions[node].start.line)

    def with_call(self, call: SourceCall, changed: cst.Call) -> bytes:
        """Returns the whole source with another call in place of `call`."""
        module = self.module.deep_replace(call.node, changed)
        assert isinstance(module, cst.Module)
        return self.bom + module.bytes


def read_source(name: str, data: bytes) -> Source:
    """Returns the source of a file. Raises `NoPatch` for one that cannot be changed without harm."""
    check_compiles(name, data)
    bom = BOM if data.startswith(BOM) else b""
    try:
        module = cst.parse_module(data.removeprefix(bom))
        is_whole = bom + module.bytes == data
    except (cst.ParserSyntaxError, ValueError, LookupError, RecursionError) as error:
        line = str(error).strip().partition("\n")[0]
        raise NoPatch(f"no patch: LibCST cannot read {name}: {line}") from error
    if not is_whole:
        raise NoPatch(f"no patch: LibCST does not give {name} back unchanged")
    wrapper = metadata.MetadataWrapper(module)
    finder = _Finder(wrapper.module)
    wrapper.visit(finder)
    return Source(wrapper, bom, tuple(finder.calls), finder.lines_of)


def check_compiles(name: str, data: bytes) -> None:
    """Raises `NoPatch` where this Python does not take a source."""
    try:
        with warnings.catch_warnings():
            # of the script's own code, such as an escape that is none
            warnings.simplefilter("ignore")
            compile(data, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        what = getattr(error, "msg", None) or str(error)
        why = f"{python}, with which vitprof runs, does not take {name}: {where}{what}"
        raise NoPatch(f"no patch: {why}") from error


@dataclass
class _Around:
    """The function that is being visited; of the module, one without a name."""

    function: str = ""
    loops: list[frozenset[str]] = field(default_factory=list)
    """Variables of the loops that are open in it."""


class _Finder(cst.CSTVisitor):
    """Collects the calls of a module."""

    METADATA_DEPENDENCIES = (
        metadata.PositionProvider,
        metadata.QualifiedNameProvider,
        metadata.ParentNodeProvider,
    )

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.calls: list[SourceCall] = []
        self.lines_of: defaultdict[str, list[int]] = defaultdict(list)
        self._module = module
        self._around = [_Around()]
        self._is_starred = False
        """Whether the script imports all names of PyTorch's module."""

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        if isinstance(node.names, cst.ImportStar) and node.module is not None:
            self._is_starred |= self._module.code_for_node(node.module) in STARRED

    def visit_FunctionDef_body(self, node: cst.FunctionDef) -> None:
        self._around.append(_Around(node.name.value))

    def leave_FunctionDef_body(self, node: cst.FunctionDef) -> None:
        self._around.pop()

    def visit_For_body(self, node: cst.For) -> None:
        self._around[-1].loops.append(_names(node.target))

    def leave_For_body(self, node: cst.For) -> None:
        self._around[-1].loops.pop()

    def visit_ListComp(self, node: cst.ListComp) -> None:
        self._begin_comprehension(node.for_in)

    def leave_ListComp(self, original_node: cst.ListComp) -> None:
        self._around[-1].loops.pop()

    def visit_GeneratorExp(self, node: cst.GeneratorExp) -> None:
        self._begin_comprehension(node.for_in)

    def leave_GeneratorExp(self, original_node: cst.GeneratorExp) -> None:
        self._around[-1].loops.pop()

    def visit_DictComp(self, node: cst.DictComp) -> None:
        self._begin_comprehension(node.for_in)

    def leave_DictComp(self, original_node: cst.DictComp) -> None:
        self._around[-1].loops.pop()

    def _begin_comprehension(self, of: cst.CompFor) -> None:
        names = _names(of.target)
        if of.inner_for_in is not None:
            names |= _names(of.inner_for_in.target)
        self._around[-1].loops.append(names)

    def visit_Call(self, node: cst.Call) -> None:
        at = self.get_metadata(metadata.PositionProvider, node)
        callee = "".join(self._module.code_for_node(node.func).split())
        self.lines_of[callee.rpartition(".")[2]].append(at.start.line)
        around = self._around[-1]
        loop_names = frozenset[str]().union(*around.loops)
        named = frozenset[str]().union(*(_names(each.value) for each in node.args))
        self.calls.append(
            SourceCall(
                node=node,
                line=at.start.line,
                last_line=at.end.line,
                callee=callee,
                is_dataloader=self._is_dataloader(node, callee),
                given=_given(node),
                target=self._target(node, around),
                function=around.function,
                loop_names=loop_names & named,
            )
        )

    def _is_dataloader(self, node: cst.Call, callee: str) -> bool:
        found = self.get_metadata(metadata.QualifiedNameProvider, node.func, set())
        names = {each.name for each in found or ()}
        if names:
            return bool(names & DATALOADERS)
        return self._is_starred and callee == "DataLoader"

    def _target(self, node: cst.CSTNode, around: _Around) -> str:
        """Returns what takes the value of a call, also where other calls are around it."""
        parent: cst.CSTNode | None = self.get_metadata(metadata.ParentNodeProvider, node)
        while isinstance(parent, cst.CSTNode):
            if isinstance(parent, cst.Assign):
                return self._module.code_for_node(parent.targets[0].target)
            if isinstance(parent, cst.AnnAssign | cst.NamedExpr):
                return self._module.code_for_node(parent.target)
            if isinstance(parent, cst.DictElement):
                return self._module.code_for_node(parent.key)
            if isinstance(parent, cst.Arg) and parent.keyword is not None:
                return parent.keyword.value
            if isinstance(parent, cst.Return):
                return around.function
            if isinstance(parent, cst.BaseStatement | cst.BaseSmallStatement):
                return ""
            parent = self.get_metadata(metadata.ParentNodeProvider, parent, None)
        return ""


def _names(node: cst.CSTNode) -> frozenset[str]:
    """Returns the variables that a part of a source names."""
    found = matchers.findall(node, matchers.Name())
    return frozenset(name.value for name in found if isinstance(name, cst.Name))


def _given(call: cst.Call) -> frozenset[str] | None:
    names = set()
    for at, argument in enumerate(call.args):
        if argument.star or not name_of(at, argument):
            return None
        names.add(name_of(at, argument))
    return frozenset(names - {"dataset"})


def name_of(at: int, argument: cst.Arg) -> str:
    """Returns PyTorch's name of an argument, `at` its place in a call without `*` and `**`; "" where PyTorch
    takes no more by position."""
    if argument.keyword is not None:
        return argument.keyword.value
    return POSITIONAL[at] if at < len(POSITIONAL) else ""
