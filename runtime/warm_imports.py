"""What a pod imports before it takes requests: many libraries load parts only at first use."""

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
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.gpt2.tokenization_gpt2",
    "transformers.generation",
    "transformers.generation.continuous_batching",
    "anyio._backends._asyncio",
    "httpcore",
    "pydantic.v1",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "runtime.pod.lifecycle",
    "runtime.logs",
    "runtime.storage.s3",
    "runtime.storage.file",
)


def import_everything() -> None:
    """Import it now, 5 to 10 s, so that neither pods nor loads of models pay for it."""
    for module in PRELOADED:
        importlib.import_module(module)
    _go_offline()


def _go_offline() -> None:
    """Keep this process from asking the Hugging Face Hub; `hf://` is fetched by another one.

    Not by `HF_HUB_OFFLINE`, which that process inherits and only a user sets.
    """
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True
