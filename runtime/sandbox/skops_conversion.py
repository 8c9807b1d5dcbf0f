"""An estimator as a skops file."""

from __future__ import annotations

from typing import Any, Final

from runtime.errors import ModelInvalid
from runtime.sandbox.predictions import Converted, Tolerance, library, predictions_of

TOLERANCE: Final = Tolerance(relative=1e-6, absolute=0.0)


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
    return Converted(content, before, after, TOLERANCE)
