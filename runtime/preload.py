"""What a pod imports before it takes requests: transformers loads its parts only at first use."""

from __future__ import annotations

import importlib

PRELOADED = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.t5.modeling_t5",
    "transformers.models.t5.tokenization_t5",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "transformers.models.vit.modeling_vit",
    "transformers.models.vit.image_processing_pil_vit",
    "transformers.generation",
    "runtime.pod",
    "runtime.logs",
    "runtime.storage_s3",
    "runtime.storage_file",
)


def import_everything() -> None:
    """Import it now, 5 to 10 s, so that no load of a model pays for it."""
    for module in PRELOADED:
        importlib.import_module(module)
