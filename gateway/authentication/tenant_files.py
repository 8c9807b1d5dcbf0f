"""Folders with a file per tenant, named like its namespace: mounted Secrets and ConfigMaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR: Final = "_operator"
"""Stands beside the tenants for what tells of all of them: metrics, explanations."""
RELOAD_S: Final = 2.0
"""A mounted volume changes without a word."""


def files_of(folder: Path) -> list[Path]:
    """The folder's files by name, without those in which a mounted volume keeps its versions.

    Raises OSError.
    """
    return [
        file
        for file in sorted(folder.iterdir())
        if not file.name.startswith(".") and file.is_file()
    ]
