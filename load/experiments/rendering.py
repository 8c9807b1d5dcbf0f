"""A result as text: cells for a terminal, Markdown for `docs/experiments/`, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from load.experiments.experiment import Cell, Result, Table


def as_text(cell: Cell) -> str:
    """A cell for eyes: four significant digits, `-` where there is nothing."""
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
    """All tables and notes."""
    parts = [_table(table) for table in result.tables]
    if result.notes:
        parts.append("\n".join(f"- {note}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [_line(table.columns), _line(["---"] * len(table.columns))]
    lines += [_line([as_text(cell) for cell in row]) for row in table.rows]
    return "\n".join([f"**{table.title}**", "", *lines])


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def as_document(result: Result) -> dict[str, Any]:
    """Everything as JSON, cells unrounded."""
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
