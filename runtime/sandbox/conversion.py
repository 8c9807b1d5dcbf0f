"""`python -m runtime.sandbox.conversion MODEL TARGET ROWS`: a pickled estimator as a skops file.

Reading a pickle runs its code, so this process confines itself before it reads anything, and prints
a JSON document: what was compared, or `error`. TARGET is an empty folder, also for temporary files.
ROWS is a file of V1 instances, or `-`: random rows.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from runtime.errors import ModelInvalid
from runtime.sandbox.confinement import ConfinementMissing, confine

MEMORY_BYTES: Final = 8 * 1024**3
RANDOM_ROWS: Final = 64
_SYSTEM: Final = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/proc/cpuinfo", "/proc/meminfo",
    "/proc/self/maps", "/sys/devices/system/cpu", "/dev/urandom", "/dev/null",
)  # fmt: skip


def main() -> int:
    """Print the report; exit status 0 if the model was written and predicts alike."""
    source, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    rows = None if sys.argv[3] == "-" else json.loads(Path(sys.argv[3]).read_text())
    tempfile.tempdir = str(target)
    try:
        confine(readable=[*_libraries(), source], writable=[target], memory_bytes=MEMORY_BYTES)
        report = convert(source, target, rows)
    except (ConfinementMissing, ModelInvalid) as error:
        report = {"error": str(error)}
    except Exception as error:  # the pickle's own code may raise anything
        report = {"error": f"{type(error).__name__}: {error}"[:1000]}
    sys.stdout.write(f"{json.dumps(report)}\n")
    return 1 if "error" in report else 0


def _libraries() -> list[Path]:
    """What Python reads when it imports."""
    packages = [Path(__file__).parents[2] / name for name in ("runtime", "registry")]
    paths = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *_SYSTEM]
    return [*packages, *(Path(path) for path in dict.fromkeys(paths))]


def convert(source: Path, target: Path, rows: list[Any] | None) -> dict[str, Any]:
    """Write `model.skops`; raises ModelInvalid, or any error of the pickle's code."""
    from runtime.engines.libraries.skops_file import read_estimator

    estimator = _unpickled(source)
    if not hasattr(estimator, "predict"):
        raise ModelInvalid(f"the file holds a {type(estimator).__name__}, which has no predict")
    try:
        data: bytes = import_module("skops.io").dumps(estimator)
    except Exception as error:  # skops has no class of its own
        raise ModelInvalid(
            f"skops cannot write the {type(estimator).__name__}: {error}; convert it to ONNX"
        ) from error
    examples = _examples(estimator, rows)
    compared = _compare(estimator, read_estimator(data, "model.skops"), examples)
    (target / "model.skops").write_bytes(data)
    return {
        "estimator": type(estimator).__name__,
        "bytes": len(data),
        "rows": len(examples),
        "random": rows is None,
        "compared": compared,
    }


def _unpickled(source: Path) -> Any:
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


def _examples(estimator: Any, rows: list[Any] | None) -> Any:
    numpy = import_module("numpy")
    names = getattr(estimator, "feature_names_in_", None)
    if rows is None:
        count = getattr(estimator, "n_features_in_", None)
        if count is None:
            raise ModelInvalid(
                "the model does not say how many features it takes: give rows to compare with"
                " --rows FILE (a JSON list, as the instances of a V1 request)"
            )
        found = numpy.random.default_rng(0).standard_normal((RANDOM_ROWS, count))
    elif not rows or not isinstance(rows, list):
        raise ModelInvalid("the file of --rows must hold a JSON list of one row or more")
    elif isinstance(rows[0], dict):
        return import_module("pandas").DataFrame(rows)
    else:
        found = rows if isinstance(rows[0], str) else numpy.asarray(rows)
    return found if names is None else import_module("pandas").DataFrame(found, columns=names)


def _compare(before: Any, after: Any, examples: Any) -> list[str]:
    """The methods that were compared; raises ModelInvalid if one gives other values."""
    numpy = import_module("numpy")
    methods = [name for name in ("predict", "predict_proba") if hasattr(before, name)]
    for name in methods:
        try:
            wanted = getattr(before, name)(examples)
        except (ValueError, TypeError) as error:
            raise ModelInvalid(
                f"the model refuses the rows to compare: {error}; give others with --rows FILE"
            ) from error
        try:
            numpy.testing.assert_allclose(getattr(after, name)(examples), wanted, rtol=1e-6)
        except TypeError:  # classes that are texts
            numpy.testing.assert_array_equal(getattr(after, name)(examples), wanted)
        except AssertionError as error:
            raise ModelInvalid(f"{name} gives other values after the conversion: {error}") from None
    return methods


if __name__ == "__main__":
    sys.exit(main())
