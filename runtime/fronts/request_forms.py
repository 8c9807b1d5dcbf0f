"""What a front makes of a body, by protocol: the network's inputs, and the encoding of outputs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from runtime.openai.endpoint import parse_head
from runtime.openai.inference_routes import embedding_inputs, encode_embeddings
from runtime.openai.requests import EmbeddingBody, parse_openai_body
from runtime.openai.responses import openai_error
from runtime.protocols.infer_route import protocol_of
from runtime.protocols.response import JSON, ErrorForm, kserve_error
from runtime.serving.predict_service import postprocess_body, preprocess_body
from runtime.tasks.embedding import Embedding
from runtime.wire.bodies import DecodedBody, WireProtocol, decode_body
from runtime.wire.v2 import EncodedBody, V2Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runtime.tasks.task import Processor
    from runtime.wire.request_head import RequestHead
    from runtime.wire.tensors import Tensor


@dataclass(frozen=True, slots=True)
class FrontRequest:
    """A request as it was received."""

    head: RequestHead
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Prepared:
    inputs: tuple[Tensor, ...]
    encode: Callable[[Sequence[Tensor]], EncodedBody]
    """The response's body from the network's outputs; blocks, raises InvalidRequest."""
    preprocess_s: float


@dataclass(frozen=True, slots=True)
class RequestForm:
    """The form of a protocol's requests and responses."""

    prepare: Callable[[FrontRequest, Processor], Prepared]
    """Blocks; raises InvalidRequest, BodyTooLarge, ModelNotFound."""
    error: ErrorForm
    is_for_embeddings: bool = False

    def takes(self, processor: Processor) -> bool:
        return not self.is_for_embeddings or isinstance(processor, Embedding)


def _prepare_kserve(
    protocol: WireProtocol, request: FrontRequest, processor: Processor
) -> Prepared:
    head = request.head
    used = protocol_of(protocol, request.headers)
    body = decode_body(used, request.body, head.v2_header_length)
    started_s = time.monotonic()
    inputs = preprocess_body(processor, body)

    def encode(outputs: Sequence[Tensor]) -> EncodedBody:
        return postprocess_body(processor, body, outputs, head.response_model_name)

    return Prepared(inputs, encode, time.monotonic() - started_s)


def _prepare_embeddings(request: FrontRequest, processor: Processor) -> Prepared:
    if not isinstance(processor, Embedding):
        raise TypeError(f"{type(processor).__name__} does not embed texts")
    document = parse_openai_body(EmbeddingBody, request.body)
    parse_head(request.head.model.path_segment, document.model, request.headers)  # checks names
    started_s = time.monotonic()
    body = DecodedBody(v2=V2Request(tuple(embedding_inputs(processor, document))))
    inputs = preprocess_body(processor, body)

    def encode_final(outputs: Sequence[Tensor]) -> EncodedBody:
        return EncodedBody(encode_embeddings(processor, document, outputs), tuple(JSON))

    def encode(outputs: Sequence[Tensor]) -> EncodedBody:
        return postprocess_body(processor, body, outputs, "", encode_final)

    return Prepared(inputs, encode, time.monotonic() - started_s)


FORMS: Mapping[str, RequestForm] = {
    "/v1/models/{model}:predict": RequestForm(
        partial(_prepare_kserve, WireProtocol.V1), kserve_error
    ),
    "/v2/models/{model}/infer": RequestForm(
        partial(_prepare_kserve, WireProtocol.V2), kserve_error
    ),
    "/serving/{model}/openai/v1/embeddings": RequestForm(
        _prepare_embeddings, openai_error, is_for_embeddings=True
    ),
}
"""By the path of the route."""
