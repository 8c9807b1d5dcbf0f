"""Import of compiled modules in place of their sources."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class _Finder:
    """Finds the extension modules of a folder by their full names."""

    def __init__(self, folder: Path) -> None:
        suffix = EXTENSION_SUFFIXES[0]
        self._files = {
            ".".join(file.relative_to(folder).parts).removesuffix(suffix): file
            for file in folder.rglob(f"*{suffix}")
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        return None if file is None else spec_from_file_location(name, file)


def install(folder: Path) -> None:
    """Import the modules of the folder from now on; modules imported before stay as they are."""
    sys.meta_path.insert(0, _Finder(folder))


def is_compiled(module: object) -> bool:
    return str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES))
