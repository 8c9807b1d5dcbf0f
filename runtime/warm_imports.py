"""Imports before a pod takes requests: many libraries import parts only at first use."""

from __future__ import annotations

import importlib

MODULES = (
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
    "transformers.utils.chat_template_utils",
    "anyio._backends._asyncio",
    "httpcore",
    "pydantic.v1",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "runtime.pod.lifecycle",
    "runtime.storage.s3",
    "runtime.storage.file",
)


def import_everything() -> None:
    """Import all modules, so that pods and loads do not spend these 5 to 10 s later."""
    for module in MODULES:
        importlib.import_module(module)
    _disable_hub()
    _render_template()
    _name_weights()


def _render_template() -> None:
    """Let jinja2 import its parts, for the sandbox's workers."""
    from transformers.utils.chat_template_utils import render_jinja_template

    render_jinja_template(
        conversations=[[]], chat_template="{% for each in messages %}{% endfor %}"
    )


def _name_weights() -> None:
    """Let transformers compile its rules for the names of weights, which takes 0.1 s."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping("legacy")


def _disable_hub() -> None:
    """Disable requests of this process to the Hugging Face Hub.

    `hf://` is downloaded by another process, which inherits the environment, so the variable
    `HF_HUB_OFFLINE` is left to the user.
    """
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True
