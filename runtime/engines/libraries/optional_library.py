"""Libraries that are optional extras, and the texts of their errors. Imports no library itself."""

from __future__ import annotations

import importlib
from types import ModuleType

from runtime.errors import EngineMissing


def one_line(error: BaseException) -> str:
    """The text of a library's error, for a message of ours: on one line, 500 characters at most."""
    return " ".join(str(error).split())[:500]


def import_library(module: str, extra: str) -> ModuleType:
    """An optional library, imported with its first model; raises EngineMissing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EngineMissing(
            f"the pod has no {module} ({error}); add it to the image with"
            f" pip install 'pilotlight[{extra}]'"
        ) from error
