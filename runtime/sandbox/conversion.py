"""`python -m runtime.sandbox.conversion MODEL TARGET ROWS FORMAT DIFFERENCES`: converts a pickle.

Reading a pickle runs its code, so this process confines itself before it reads anything, and prints
a JSON document: what was compared, or `error`. TARGET is an empty folder, also for temporary files.
ROWS is a file of V1 instances, or `-`: random rows. FORMAT is `skops` or `onnx`. DIFFERENCES is
`refuse`, or `allow`: write the model also if it predicts otherwise.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from registry.confinement import ConfinementMissing, confine
from runtime.errors import ModelInvalid
from runtime.sandbox.onnx_conversion import to_onnx
from runtime.sandbox.pickles import readable_libraries, unpickled
from runtime.sandbox.predictions import differences, example_rows
from runtime.sandbox.skops_conversion import to_skops

MEMORY_BYTES: Final = 8 * 1024**3
CONVERTERS: Final = {"skops": to_skops, "onnx": to_onnx}


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
    if not hasattr(estimator, "predict"):
        raise ModelInvalid(f"the file holds a {type(estimator).__name__}, which has no predict")
    examples = example_rows(estimator, rows)
    converted = CONVERTERS[kind](estimator, examples)
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
