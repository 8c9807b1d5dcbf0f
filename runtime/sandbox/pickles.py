"""Reads pickled estimators, in processes that have confined themselves: that runs their code."""

from __future__ import annotations

import re
import sys
import sysconfig
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

from runtime.errors import ModelInvalid

HEADER_LENGTH: Final = "header_length"
_SYSTEM: Final = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self/maps",
    "/sys/devices/system/cpu",
    "/dev/urandom",
    "/dev/null",
)
_BOOSTERS: Final = {
    "xgboost": "model.save_model('model.ubj')",
    "lightgbm": "model.booster_.save_model('model.txt')",
}
"""How the estimators of a library are saved in its own format."""
_OF_THE_SCRIPT: Final = re.compile(
    r"Can't get attribute '(.+?)' on <module '(?:__main__|runtime\.sandbox\.\w+)'"
)
"""What pickle says of a name in the program that wrote the file: it looks in the one that reads."""


def readable_libraries() -> list[Path]:
    """What Python reads when it imports."""
    packages = [Path(__file__).parents[2] / name for name in ("runtime", "registry", "common")]
    paths = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *_SYSTEM]
    return [*packages, *(Path(path) for path in dict.fromkeys(paths))]


def booster_advice(found: Any) -> str | None:
    """How to save the object in the format of its own library; None for other objects."""
    package = type(found).__module__.partition(".")[0]
    saved = _BOOSTERS.get(package)
    if saved is None:
        return None
    if type(found).__name__ == "Booster":
        saved = saved.replace(".booster_", "")
    kind = type(found).__name__
    return (
        f"the file holds a {kind} of {package}, whose own files are served without a pickle: save"
        f" it with {saved} and declare modelFormat {package}"
    )


def unpickled(source: Path | BinaryIO) -> Any:
    """The object in the file; raises ModelInvalid if what it was made of is not here."""
    sklearn = import_module("sklearn")
    inconsistent = import_module("sklearn.exceptions").InconsistentVersionWarning
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = import_module("joblib").load(source)
        except AttributeError as error:
            named = _OF_THE_SCRIPT.match(str(error))
            if named is None:
                raise
            raise ModelInvalid(
                f"the model needs {named[1]!r} of the script that trained it, which is not in the"
                " file: train it without, such as with functions of numpy or scikit-learn"
                " (FunctionTransformer(numpy.log1p)), which any Python has"
            ) from error
        except ModuleNotFoundError as error:
            raise ModelInvalid(
                f"the model needs the module {error.name!r}, which is not installed here: install"
                " its package, or train the model without it"
            ) from error
    for each in caught:
        if issubclass(each.category, inconsistent):
            version = getattr(each.message, "original_sklearn_version", "another version")
            raise ModelInvalid(
                f"the model was saved with scikit-learn {version}, this is {sklearn.__version__};"
                f" convert it where scikit-learn {version} is installed"
                " (skops.io.dump(model, 'model.skops')), or train it again"
            )
    return found
