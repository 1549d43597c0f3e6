"""What judges ask of a data column, and how they say that it is not there."""

from __future__ import annotations

from typing import Any

from rlctl.data import Prompts
from rlctl.errors import DataError, nearest


def check_column(judge: str, column: str, prompts: Prompts) -> None:
    """The data must have a column.

    Raises:
        DataError: it has none of that name.
    """
    if column in prompts.columns:
        return
    near = nearest(column, prompts.columns)
    raise DataError(
        f"judge {judge}: the data have no column {column!r}",
        f"columns: {', '.join(prompts.columns) or 'none beside the prompt'}",
        f"column: {near}" if near else None,
    )


def cell(columns: dict[str, Any], column: str) -> str | None:
    """A row's cell as text; None if it is missing."""
    value = columns.get(column)
    return None if value is None else str(value)
