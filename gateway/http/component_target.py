"""Which component of a model's InferenceService serves a request, as KServe's router decides. Pure.

The explainer serves `:explain`, the transformer all other requests, and the model itself what is
sent to `NAME-predictor`, as its components send it (KServe 0.20, `ingress_reconciler.go`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from registry.inference_service.components import EXPLAINER, TRANSFORMER

if TYPE_CHECKING:
    from registry.domain.model import ModelSpec

PREDICTOR_SUFFIX: Final = "-predictor"


class Verb(StrEnum):
    """What an inference path asks for, after KServe's protocols."""

    PREDICT = "predict"
    EXPLAIN = "explain"
    INFER = "infer"


@dataclass(frozen=True, slots=True)
class ComponentTarget:
    """A component of a model, and how it is asked."""

    component: str
    """`transformer` or `explainer`."""
    address: str
    """`host:port` of its Service."""
    path: bytes
    """The request's path there: KServe's, without our prefixes."""

    @property
    def host(self) -> str:
        """For the header of that name: without the default port."""
        return self.address.removesuffix(":80")


def component_of(
    spec: ModelSpec, *, verb: Verb | None, openai_endpoint: str | None, is_direct: bool
) -> ComponentTarget | None:
    """The component that serves a request to a declared model; None: the model itself.

    `verb`: None for OpenAI's protocol; `is_direct`: it was sent to `NAME-predictor`.
    """
    component = EXPLAINER if verb is Verb.EXPLAIN else TRANSFORMER
    address = spec.explainer if verb is Verb.EXPLAIN else spec.transformer
    if is_direct or not address:
        return None
    return ComponentTarget(component, address, _path(spec.name.name, verb, openai_endpoint))


def _path(name: str, verb: Verb | None, openai_endpoint: str | None) -> bytes:
    name = quote(name, safe="")
    if verb is None:
        return f"/openai/v1/{openai_endpoint}".encode()
    if verb is Verb.INFER:
        return f"/v2/models/{name}/infer".encode()
    return f"/v1/models/{name}:{verb}".encode()
