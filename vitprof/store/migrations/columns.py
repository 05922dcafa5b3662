"""Columns, indexes and tables that several migrations add."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op


def measured(*names: str) -> list[sa.Column[Any]]:
    """Returns columns for measured figures; null, which is read as "not available", where there is none."""
    return [sa.Column(name, sa.Double) for name in names]


def add_missing(table: str, columns: list[sa.Column[Any]]) -> None:
    """Adds the columns that are missing: stores of some versions may or may not have them."""
    known = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
    for column in columns:
        if column.name not in known:
            op.add_column(table, column)


def text(name: str) -> sa.Column[Any]:
    """Returns a column for text that is "" in existing rows."""
    return sa.Column(name, sa.String, nullable=False, server_default="")


def create_index(name: str, table: str, *columns: str) -> None:
    """Adds an index unless it exists."""
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, list(columns))


def create_table(name: str, *columns: sa.Column[Any], **options: Any) -> None:
    """Adds a table unless it exists."""
    if not sa.inspect(op.get_bind()).has_table(name):
        op.create_table(name, *columns, **options)
