"""A pod's process before and around the pod: its share, its imports, and why it ended.

It is bound to its share before anything starts CUDA or a thread.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MPS_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""MPS reads it when CUDA starts: another share needs another process."""


def bind_to_share(*, gpu: str = "", cores: str = "", share_pct: float) -> None:
    """Set what CUDA reads at its start, and the cores this process may use; raises OSError.

    `cores`: numbers separated by commas; with them they are the share. 0: no limit by MPS.
    """
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if share_pct and not cores:
        os.environ[MPS_PERCENTAGE] = f"{share_pct:g}"
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))


TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Kubernetes mounts this file into each container, and shows at most 4096 bytes of it."""
MAX_BYTES: Final = 4096


def write_termination_message(reason: str, path: Path = TERMINATION_LOG) -> None:
    """State why the pod ends, for `kubectl describe pod`, where Kubernetes provides the file."""
    with suppress(OSError):
        if path.is_file():
            path.write_bytes(reason.encode()[:MAX_BYTES])


IMPORTED: Final = (
    "torch",
    "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto",
    "transformers.models.t5.modeling_t5", "transformers.models.t5.tokenization_t5",
    "transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert",
    "transformers.models.vit.modeling_vit", "transformers.models.vit.image_processing_pil_vit",
    "transformers.models.gpt2.modeling_gpt2", "transformers.models.gpt2.tokenization_gpt2",
    "transformers.generation", "transformers.generation.continuous_batching",
    "transformers.utils.chat_template_utils",
    "anyio._backends._asyncio", "httpcore", "pydantic.v1",
    "uvicorn.lifespan.off", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto",
    "runtime.pod.lifecycle", "runtime.storage.s3", "runtime.storage.file",
)  # fmt: skip
"""Many libraries import parts only at first use."""


def import_everything() -> None:
    """Import all modules, so that pods and loads do not spend these 5 to 10 s later."""
    for module in IMPORTED:
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
