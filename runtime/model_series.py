"""The metrics of a pod that have a series per model, and their removal with the model.

A histogram's series takes 4 KB; a pod that sees thousands of models come and go would keep them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kserve.metrics import POST_HIST_TIME, PRE_HIST_TIME, PREDICT_HIST_TIME

from registry.domain.pod import Stage
from runtime.metrics import BATCH_SIZE, BATCHES, QUEUE_SECONDS

if TYPE_CHECKING:
    from registry.domain.model import ModelName

KSERVE_HISTOGRAMS: Final = {
    Stage.PREPROCESS: PRE_HIST_TIME,
    Stage.INFER: PREDICT_HIST_TIME,
    Stage.POSTPROCESS: POST_HIST_TIME,
}
_OURS: Final = (BATCH_SIZE, BATCHES, QUEUE_SECONDS)


def drop_series(model: ModelName) -> None:
    """Forget all series of a model; a later request starts them again from zero."""
    for ours in _OURS:
        ours.remove_by_labels({"model": str(model)})
    for histogram in KSERVE_HISTOGRAMS.values():
        histogram.remove_by_labels({"model_name": model.path_segment})
