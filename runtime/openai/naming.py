"""Which model an OpenAI request is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.model import ModelName
from runtime.errors import ModelNotFound
from runtime.wire.request_head import read_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.wire.request_head import RequestHead


def model_named(text: str) -> ModelName:
    """The model that a caller calls `name`, `namespace/name` or `namespace~name`."""
    return ModelName.from_path_segment(text) if "~" in text else ModelName.parse(text)


def openai_head(
    path_model: str | None,
    body_model: str,
    headers: Mapping[str, str],
    *,
    allow_simulated_work: bool,
) -> RequestHead:
    """The head of a request; raises ModelNotFound where path and body name different models.

    A body may name what the gateway calls the model to its caller: of a canary, its stable version.
    """
    name = model_named(body_model)
    if path_model is not None:
        addressed = ModelName.from_path_segment(path_model)
        called = headers.get("x-pilotlight-model-name")
        if body_model not in (addressed.name, str(addressed), addressed.path_segment, called):
            raise ModelNotFound(f"the body names model {body_model!r}, the address {addressed}")
        name = addressed
    return read_head(name.path_segment, headers, allow_simulated_work=allow_simulated_work)
