"""Where a value of the DataLoader comes from that its call does not have itself, and what to change there."""

from __future__ import annotations

import ast
from typing import Any

import libcst as cst
from libcst import matchers, metadata

from vitprof.export.patch.calls import Source, SourceCall

MOST_SHOWN = 60
"""Characters of an expression that are shown."""
NO_LITERAL = object()
"""Stands for what is no literal."""


def literal(source: Source, expression: cst.BaseExpression) -> Any:
    """Returns the value of a literal; `NO_LITERAL` for any other expression."""
    try:
        return ast.literal_eval(source.module.code_for_node(expression).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return NO_LITERAL


def shown(source: Source, expression: cst.CSTNode) -> str:
    """Returns an expression in a line, cut where it is long."""
    code = source.code(expression)
    return code if len(code) <= MOST_SHOWN else f"{code[: MOST_SHOWN - 3]}..."


MOST_STEPS = 3
"""How many variables are followed, each to where it gets its value."""


def what_to_do(
    source: Source, call: SourceCall, expression: cst.BaseExpression, value: Any, depth: int = 0
) -> str:
    """Returns what to do that an expression among the arguments of a call becomes `value`.

    `depth`: how many variables led to it.
    """
    todo = ""
    if isinstance(expression, cst.Attribute):
        todo = _of_attribute(source, expression, value)
    elif isinstance(expression, cst.Name) and depth < MOST_STEPS:
        todo = _of_name(source, call, expression, value, depth)
    return todo or f"make it {value!r} there"


def _of_attribute(source: Source, expression: cst.Attribute, value: Any) -> str:
    """Returns the option to give, where a parser of argparse in the same file has one of this name; ""
    where it is not sure that its value arrives."""
    name = expression.attr.value
    if not isinstance(expression.value, cst.Name) or expression.value.value in ("self", "cls"):
        return ""
    set_at = _lines_that_set(source, name)
    if set_at:
        return f"make it {value!r} there: line {set_at[0]} sets it, too"
    options = [each for each in source.calls if _destination(source, each) == name]
    if len(options) != 1:
        return ""
    (option,) = options
    flag = _flag(source, option)
    action = _keyword(option, "action")
    kind = "" if action is None else str(literal(source, action) or "")
    if action is None and value is not None and not isinstance(value, bool):
        return f"run the script with {flag} {value}"
    if value is True and kind == "store_true":
        return f"run the script with {flag}"
    if value is False and kind == "store_true":
        return f"run the script without {flag}"
    return f"make it {value!r} by {flag}, line {option.line}"


def _destination(source: Source, call: SourceCall) -> str:
    """Returns the attribute that a call of `add_argument` gives; "" of any other call."""
    if not call.callee.endswith(".add_argument"):
        return ""
    named = _keyword(call, "dest")
    if named is not None:
        return str(literal(source, named))
    flag = _flag(source, call)
    return flag.lstrip("-").replace("-", "_") if flag.startswith("-") else ""


def _flag(source: Source, call: SourceCall) -> str:
    """Returns the option of a call of `add_argument`: its first long one, as argparse has it; "" without any."""
    given = [literal(source, each.value) for each in call.node.args if each.keyword is None]
    flags = [each for each in given if isinstance(each, str)]
    long = [flag for flag in flags if flag.startswith("--")]
    return next(iter((*long, *flags)), "")


def _keyword(call: SourceCall, name: str) -> cst.BaseExpression | None:
    for argument in call.node.args:
        if argument.keyword is not None and argument.keyword.value == name:
            return argument.value
    return None


def _lines_that_set(source: Source, name: str) -> list[int]:
    """Returns the lines that set an attribute of this name, of whatever object."""
    attribute = matchers.Attribute(attr=matchers.Name(name))
    setting = matchers.OneOf(
        matchers.AssignTarget(target=attribute), matchers.AugAssign(target=attribute)
    )
    return [source.line(node) for node in matchers.findall(source.module, setting)]


def _of_name(source: Source, call: SourceCall, expression: cst.Name, value: Any, depth: int) -> str:
    """Returns where a variable gets its value; "" where that is in several places, or cannot be told."""
    scope = source.wrapper.resolve(metadata.ScopeProvider).get(expression)
    if scope is None:
        return ""
    set_by = [each for each in scope[expression.value] if isinstance(each, metadata.Assignment)]
    if len(set_by) != 1:
        return ""
    parents = source.wrapper.resolve(metadata.ParentNodeProvider)
    node: Any = set_by[0].node
    while isinstance(node, cst.Name | cst.AssignTarget):
        node = parents.get(node)
    name = expression.value
    if isinstance(node, cst.Param):
        parameters = parents.get(node)
        function = None if parameters is None else parents.get(parameters)
        if isinstance(function, cst.FunctionDef):
            return f"call {function.name.value} with {name}={value!r}"
    if isinstance(node, cst.Assign | cst.AnnAssign) and node.value is not None:
        line = source.line(node)
        if literal(source, node.value) is not NO_LITERAL:
            return f"set {name} = {value!r} in line {line}"
        todo = what_to_do(source, call, node.value, value, depth + 1)
        return f"{name} is {shown(source, node.value)}, line {line}: {todo}"
    return ""
