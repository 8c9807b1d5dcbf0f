"""A result as text: cells for a terminal, Markdown for `research/docs/`, JSON."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from research.experiments.harness.experiment import Cell, Result, Table


def as_text(cell: Cell) -> str:
    """A cell as text: four significant digits, `-` for a missing value."""
    match cell:
        case None:
            return "-"
        case float():
            return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
        case int():
            return f"{cell:,}"
        case str():
            return cell


def as_markdown(result: Result) -> str:
    parts = [_table(table) for table in result.tables]
    if result.notes:
        parts.append("\n".join(f"- {note}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    rows = [table.columns, ["---"] * len(table.columns), *(map(as_text, row) for row in table.rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([f"**{table.title}**", "", *lines])


def as_document(result: Result) -> dict[str, Any]:
    """A result as a JSON object, with unrounded cells."""
    return {
        "tables": [
            {
                "title": table.title,
                "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
            }
            for table in result.tables
        ],
        "notes": list(result.notes),
        "images": [str(path) for path in result.images],
    }


def spread(
    values: Sequence[float],
    centre: Callable[[Sequence[float]], float],
    text: Callable[[float], str],
) -> str:
    """A mean or median with the lowest and the highest value, such as `3.1 (2 to 5)`."""
    return f"{text(centre(values))} ({text(min(values))} to {text(max(values))})"


def listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))
