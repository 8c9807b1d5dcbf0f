"""`python -m runtime.sandbox.conversion MODEL TARGET ROWS FORMAT DIFFERENCES`: converts a pickle.

Reading a pickle runs its code, so this process confines itself before it reads anything, and prints
a JSON document: what was compared, or `error`. TARGET is an empty folder, also for temporary files.
ROWS is a file of V1 instances, or `-`: random rows. FORMAT is `skops` or `onnx`. DIFFERENCES is
`refuse`, or `allow`: write the model also if it predicts otherwise.

ONNX has one matrix of features or a tensor per column, and computes in 32 bits where scikit-learn
computes in 64, so numbers agree less closely.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from common.confinement import ConfinementMissing, confine
from runtime.engines.libraries.rows import one_line
from runtime.engines.libraries.sklearn_model import known_values
from runtime.errors import ModelInvalid
from runtime.sandbox.pickles import booster_advice, readable_libraries, unpickled

if TYPE_CHECKING:
    import numpy.typing as npt


RANDOM_ROWS: Final = 64
METHODS: Final = ("predict", "predict_proba")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Numbers are equal within `relative * |before| + absolute`; other values exactly."""

    relative: float
    absolute: float

    @property
    def text(self) -> str:
        return f"{self.relative:g} relative, {self.absolute:g} absolute"


@dataclass(frozen=True, slots=True)
class Converted:
    content: bytes
    """Of the file."""
    before: Mapping[str, Any]
    """The estimator's predictions of the examples, by its method."""
    after: Mapping[str, Any]
    """Those of the converted model."""
    tolerance: Tolerance


def library(name: str) -> Any:
    """A module that conversions need; raises ModelInvalid."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ModelInvalid(
            f"{name} cannot be imported ({error}): pip install 'pilotlight[convert]'"
        ) from error


def example_rows(estimator: Any, rows: list[Any] | None) -> Any:
    """An array, a list of texts, or a data frame for a model that knows its columns."""
    names = getattr(estimator, "feature_names_in_", None)
    found: Any
    if rows is None:
        count = getattr(estimator, "n_features_in_", None)
        if count is None:
            raise ModelInvalid(
                "the model does not say how many features it takes: give rows to compare with"
                " --rows FILE (a JSON list, as the instances of a V1 request)"
            )
        found = _random_rows(estimator, names, count)
    elif not rows or not isinstance(rows, list):
        raise ModelInvalid("the file of --rows must hold a JSON list of one row or more")
    elif isinstance(rows[0], dict):
        return library("pandas").DataFrame(rows)
    else:
        found = rows if isinstance(rows[0], str) else np.asarray(rows)
    if names is None:
        return found
    table = library("pandas").DataFrame(found)
    table.columns = names
    return table


def _random_rows(estimator: Any, names: Any, count: int) -> Any:
    """Normally distributed numbers, or for a column of categories some that the model knows."""
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((RANDOM_ROWS, count))
    known = known_values(estimator, None if names is None else [*map(str, names)], count)
    if not known:
        return numbers
    table = library("pandas").DataFrame(numbers)
    for index, values in known.items():
        table[index] = rng.choice(values, RANDOM_ROWS)
    return table if names is not None else table.to_numpy()


def predictions_of(estimator: Any, examples: Any) -> dict[str, Any]:
    """By method; raises ModelInvalid if the estimator refuses the rows."""
    try:
        return {
            name: getattr(estimator, name)(examples) for name in METHODS if hasattr(estimator, name)
        }
    except (ValueError, TypeError) as error:
        raise ModelInvalid(
            f"the model refuses the rows to compare: {error}; give others with --rows FILE"
        ) from error


def differences(converted: Converted) -> list[str]:
    """How the predictions of each method differ, if they do."""
    found = []
    for method, before in converted.before.items():
        after = converted.after[method]
        if not isinstance(before, list):  # a list holds an array per output
            before, after = [before], [after]
        if len(before) != len(after):
            found.append(f"{method} gives {len(after)} outputs, not {len(before)}")
            continue
        texts = (
            _difference(np.asarray(one), np.asarray(other), converted.tolerance)
            for one, other in zip(before, after, strict=True)
        )
        found += [f"{method} {text}" for text in texts if text]
    return found


def _difference(before: Any, after: Any, tolerance: Tolerance) -> str | None:
    if before.ndim == 1 and after.shape == (len(before), 1):
        after = after[:, 0]  # a regressor of ONNX gives a column
    if before.shape != after.shape:
        return f"gives the shape {list(after.shape)}, not {list(before.shape)}"
    are_numbers = all(np.issubdtype(each.dtype, np.floating) for each in (before, after))
    if are_numbers:
        equal = np.isclose(
            after, before, rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True
        )
    else:
        equal = np.asarray(before == after, dtype=bool)
    if equal.all():
        return None
    rows = np.flatnonzero(~equal.reshape(len(equal), -1).all(axis=1))
    first = np.argwhere(~equal)[0]
    place = tuple(int(each) for each in first)
    return (
        f"differs in {len(rows)} of {len(equal)} rows (row {place[0]}:"
        f" {after[place]!s} instead of {before[place]!s}; numbers may differ by {tolerance.text})"
    )


SKOPS_TOLERANCE: Final = Tolerance(relative=1e-6, absolute=0.0)
ONNX_TOLERANCE: Final = Tolerance(relative=1e-4, absolute=1e-5)
INPUT: Final = "X"
"""The name of a matrix of features."""
_INSTEAD: Final = "write a skops file instead (--format skops)"
MEMORY_BYTES: Final = 8 * 1024**3


def to_skops(estimator: Any, examples: Any) -> Converted:
    """Raises ModelInvalid if skops cannot write the estimator, or a pod would not read it."""
    from runtime.engines.libraries.skops_file import read_estimator

    skops = library("skops.io")
    before = predictions_of(estimator, examples)
    try:
        content: bytes = skops.dumps(estimator)
    except Exception as error:  # skops has no class of its own
        raise ModelInvalid(
            f"skops cannot write the {type(estimator).__name__}: {error}; convert it to ONNX"
            " (--format onnx)"
        ) from error
    after = predictions_of(read_estimator(content, "model.skops"), examples)
    return Converted(content, before, after, SKOPS_TOLERANCE)


def to_onnx(estimator: Any, examples: Any) -> Converted:
    """Raises ModelInvalid if skl2onnx cannot convert the estimator, or onnxruntime not run it."""
    rows = _in_32_bits(examples)
    before = predictions_of(estimator, rows)
    inputs = _inputs(estimator, rows)
    content = _converted(estimator, inputs)
    outputs = _outputs(content, inputs, type(estimator).__name__)
    if len(outputs) < len(before):
        raise ModelInvalid(
            f"skl2onnx gave the {type(estimator).__name__} {len(outputs)} outputs for"
            f" {' and '.join(before)}; {_INSTEAD}"
        )
    return Converted(content, before, dict(zip(before, outputs, strict=False)), ONNX_TOLERANCE)


def _in_32_bits(examples: Any) -> Any:
    """Both models see the same rows: numbers as ONNX takes them."""
    if isinstance(examples, list):
        raise ModelInvalid(f"a model of texts is not converted to ONNX: {_INSTEAD}")
    if isinstance(examples, np.ndarray):
        return examples.astype(np.float32)
    wide = [name for name in examples if examples[name].dtype.kind == "f"]
    return examples.astype(dict.fromkeys(wide, np.float32))


def _inputs(estimator: Any, rows: Any) -> Mapping[str, npt.NDArray[Any]]:
    """By name: a column each if the model tells columns apart, else one matrix."""
    if isinstance(rows, np.ndarray):
        return {INPUT: rows}
    steps = [step for _, step in getattr(estimator, "steps", [("", estimator)])]
    by_column = any(type(step).__name__ == "ColumnTransformer" for step in steps)
    if not by_column and all(dtype.kind in "fiub" for dtype in rows.dtypes):
        return {INPUT: rows.to_numpy(np.float32)}
    return {str(name): rows[name].to_numpy().reshape(-1, 1) for name in rows}


def _converted(estimator: Any, inputs: Mapping[str, npt.NDArray[Any]]) -> bytes:
    skl2onnx = library("skl2onnx")
    types = [(name, _type(name, values)) for name, values in inputs.items()]
    is_classifier = library("sklearn.base").is_classifier(estimator)
    try:
        model = skl2onnx.convert_sklearn(
            estimator, initial_types=types, options={"zipmap": False} if is_classifier else None
        )
    except Exception as error:  # its converters raise many kinds, most of them RuntimeError
        # Its text goes on with advice for authors of converters.
        reason = one_line(error).partition(" It usually means")[0]
        raise ModelInvalid(
            f"skl2onnx {skl2onnx.__version__} cannot convert the {type(estimator).__name__}:"
            f" {reason}; {_INSTEAD}"
        ) from error
    content: bytes = model.SerializeToString()
    return content


def _type(name: str, values: npt.NDArray[Any]) -> Any:
    types = library("skl2onnx.common.data_types")
    kinds = {
        "f": types.FloatTensorType,
        "i": types.Int64TensorType,
        "O": types.StringTensorType,
        "b": types.BooleanTensorType,
    }
    if values.dtype.kind not in kinds:
        raise ModelInvalid(f"column {name!r} holds {values.dtype}, which has no type in ONNX")
    return kinds[values.dtype.kind]([None, values.shape[1]])


def _outputs(content: bytes, inputs: Mapping[str, npt.NDArray[Any]], kind: str) -> list[Any]:
    """What onnxruntime computes of the rows, in the order of the file's outputs."""
    onnxruntime = library("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        found: list[Any] = session.run(None, dict(inputs))
    except Exception as error:  # onnxruntime's errors have no common class
        raise ModelInvalid(
            f"onnxruntime {onnxruntime.__version__} cannot run the converted {kind}:"
            f" {one_line(error)}; {_INSTEAD}"
        ) from error
    if not all(isinstance(each, np.ndarray) for each in found):
        raise ModelInvalid(f"the converted {kind} has outputs that are no tensors; {_INSTEAD}")
    return found


def main() -> int:
    """Print the report; exit status 0 if the model was written."""
    source, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    rows = None if sys.argv[3] == "-" else json.loads(Path(sys.argv[3]).read_text())
    tempfile.tempdir = str(target)
    try:
        confine(
            readable=[*readable_libraries(), source], writable=[target], memory_bytes=MEMORY_BYTES
        )
        report = convert(
            source, target, rows, kind=sys.argv[4], allow_differences=sys.argv[5] == "allow"
        )
    except (ConfinementMissing, ModelInvalid) as error:
        report = {"error": str(error)}
    except Exception as error:  # the pickle's own code may raise anything
        report = {"error": f"{type(error).__name__}: {error}"[:1000]}
    sys.stdout.write(f"{json.dumps(report)}\n")
    return 1 if "error" in report else 0


def convert(
    source: Path, target: Path, rows: list[Any] | None, *, kind: str, allow_differences: bool
) -> dict[str, Any]:
    """Write `model.skops` or `model.onnx`; raises ModelInvalid, or any error of the pickle."""
    estimator = unpickled(source)
    if (advice := booster_advice(estimator)) is not None:
        raise ModelInvalid(advice)
    if not hasattr(estimator, "predict"):
        raise ModelInvalid(f"the file holds a {type(estimator).__name__}, which has no predict")
    examples = example_rows(estimator, rows)
    converted = (to_skops if kind == "skops" else to_onnx)(estimator, examples)
    differing = differences(converted)
    if differing and not allow_differences:
        raise ModelInvalid(
            f"the converted model predicts otherwise: {'; '.join(differing)}; compare on rows of"
            " your own with --rows FILE, or write it nevertheless with --allow-differences"
        )
    (target / f"model.{kind}").write_bytes(converted.content)
    return {
        "estimator": type(estimator).__name__,
        "bytes": len(converted.content),
        "rows": len(examples),
        "random": rows is None,
        "compared": list(converted.before),
        "tolerance": converted.tolerance.text,
        "differences": differing,
    }


if __name__ == "__main__":
    sys.exit(main())
