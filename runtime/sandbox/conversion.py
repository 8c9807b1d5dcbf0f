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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from common.confinement import ConfinementMissing, confine
from runtime.engines.libraries.optional_library import one_line
from runtime.errors import ModelInvalid
from runtime.sandbox.pickles import booster_advice, readable_libraries, unpickled
from runtime.sandbox.predictions import (
    Converted,
    Tolerance,
    differences,
    example_rows,
    library,
    predictions_of,
)

if TYPE_CHECKING:
    import numpy.typing as npt

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
