"""Changes the arguments of a call, in the layout that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

WhiteSpace = cst.BaseParenthesizableWhitespace
ONE_SPACE = cst.SimpleWhitespace(" ")
NO_SPACE = cst.SimpleWhitespace("")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one argument."""

    name: str
    value: Any
    """Its new value. Of an argument that is removed, the one that means the same as no argument."""
    at: int | None
    """The place of the argument in the call; None where it is added."""
    removes: bool = False
    """Whether it is taken out of the call."""


def edited(call: cst.Call, changes: Sequence[Change], quote: str) -> cst.Call:
    """Returns the call with its arguments changed; comments, commas and line breaks stay as they are.

    `quote`: the quotation mark of new texts.
    """
    arguments = _Arguments(call)
    for change in changes:
        if change.at is not None and not change.removes:
            arguments.replace(change.at, _literal(change.value, quote))
    removed = [change.at for change in changes if change.at is not None and change.removes]
    # from the end, so that the places of the others stay
    for at in sorted(removed, reverse=True):
        arguments.remove(at)
    for change in changes:
        if change.at is None:
            arguments.add(change.name, _literal(change.value, quote))
    return arguments.call()


def quote_of(module: cst.Module) -> str:
    """Returns the quotation mark that a source mostly uses."""
    code = module.code
    return "'" if code.count("'") > code.count('"') else '"'


def _literal(value: Any, quote: str) -> cst.BaseExpression:
    code = f"{quote}{value}{quote}" if isinstance(value, str) else repr(value)
    return cst.parse_expression(code)


class _Arguments:
    """The arguments of a call, with the white space and comments before, between and behind them."""

    def __init__(self, call: cst.Call) -> None:
        self._call = call
        self._args = list(call.args)
        last = self._args[-1]
        self._last_comma = last.comma
        """A comma behind the last argument, or none."""
        self._gaps: list[WhiteSpace] = [call.whitespace_before_args]
        """What is before each argument, and before the closing parenthesis."""
        for argument in self._args:
            if isinstance(argument.comma, cst.Comma):
                self._gaps.append(argument.comma.whitespace_after)
        if not isinstance(last.comma, cst.Comma):
            self._gaps.append(last.whitespace_after_arg)
            # its gap has it from here on
            self._args[-1] = last.with_changes(whitespace_after_arg=NO_SPACE)

    def replace(self, at: int, value: cst.BaseExpression) -> None:
        self._args[at] = self._args[at].with_changes(value=value)

    def remove(self, at: int) -> None:
        is_last = at == len(self._args) - 1
        del self._args[at]
        self._gaps[at : at + 2] = [_joined(self._gaps[at], self._gaps[at + 1], is_last=is_last)]

    def add(self, name: str, value: cst.BaseExpression) -> None:
        """Adds an argument behind the last one: in a line of its own if that one begins a line."""
        *_, before_last, end = self._gaps
        between: WhiteSpace = ONE_SPACE
        if isinstance(before_last, cst.ParenthesizedWhitespace):
            line_end = _without_comment(before_last.first_line)
            if isinstance(end, cst.ParenthesizedWhitespace):
                # a comment behind the last argument stays in its line
                line_end = end.first_line
                end = end.with_changes(first_line=_without_comment(end.first_line))
            between = before_last.with_changes(first_line=line_end, empty_lines=())
        self._gaps[-1:] = [between, end]
        equal = cst.AssignEqual(NO_SPACE, NO_SPACE)
        for argument in self._args:
            if isinstance(argument.equal, cst.AssignEqual):
                equal = argument.equal
        self._args.append(cst.Arg(value, keyword=cst.Name(name), equal=equal))

    def call(self) -> cst.Call:
        """Returns the call with these arguments."""
        args = []
        for argument, gap in zip(self._args[:-1], self._gaps[1:], strict=False):
            comma = argument.comma if isinstance(argument.comma, cst.Comma) else cst.Comma()
            args.append(argument.with_changes(comma=comma.with_changes(whitespace_after=gap)))
        last = self._args[-1]
        end = self._gaps[-1]
        if isinstance(self._last_comma, cst.Comma):
            args.append(
                last.with_changes(comma=self._last_comma.with_changes(whitespace_after=end))
            )
        else:
            no_comma = cst.MaybeSentinel.DEFAULT
            args.append(last.with_changes(comma=no_comma, whitespace_after_arg=end))
        return self._call.with_changes(args=args, whitespace_before_args=self._gaps[0])


def _without_comment(line: cst.TrailingWhitespace) -> cst.TrailingWhitespace:
    return line.with_changes(comment=None, whitespace=NO_SPACE)


def _joined(before: WhiteSpace, after: WhiteSpace, *, is_last: bool) -> WhiteSpace:
    """Returns what stands in place of an argument that is removed, of the gaps around it.

    Comments in lines of their own stay. One behind the argument goes with it if no other argument is
    in that line.
    """
    if isinstance(after, cst.ParenthesizedWhitespace):
        if not isinstance(before, cst.ParenthesizedWhitespace):
            return after
        lines = (*before.empty_lines, *after.empty_lines)
        return after.with_changes(first_line=before.first_line, empty_lines=lines)
    if not is_last:
        return before
    if isinstance(before, cst.ParenthesizedWhitespace):
        has_comment = before.first_line.comment or any(line.comment for line in before.empty_lines)
        # the closing parenthesis cannot follow a comment in its line
        return before if has_comment else after
    return after
