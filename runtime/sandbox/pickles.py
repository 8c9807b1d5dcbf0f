"""Reads pickled estimators, in processes that have confined themselves: that runs their code."""

from __future__ import annotations

import sys
import sysconfig
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from typing import BinaryIO

_SYSTEM: Final = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/proc/cpuinfo", "/proc/meminfo",
    "/proc/self/maps", "/sys/devices/system/cpu", "/dev/urandom", "/dev/null",
)  # fmt: skip


def readable_libraries() -> list[Path]:
    """What Python reads when it imports."""
    packages = [Path(__file__).parents[2] / name for name in ("runtime", "registry")]
    paths = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *_SYSTEM]
    return [*packages, *(Path(path) for path in dict.fromkeys(paths))]


def unpickled(source: Path | BinaryIO) -> Any:
    """The object in the file; raises ModelInvalid if another scikit-learn wrote it."""
    sklearn = import_module("sklearn")
    inconsistent = import_module("sklearn.exceptions").InconsistentVersionWarning
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = import_module("joblib").load(source)
    for each in caught:
        if issubclass(each.category, inconsistent):
            version = getattr(each.message, "original_sklearn_version", "another version")
            raise ModelInvalid(
                f"the model was saved with scikit-learn {version}, this is {sklearn.__version__};"
                f" convert it where scikit-learn {version} is installed"
                " (skops.io.dump(model, 'model.skops')), or train it again"
            )
    return found
