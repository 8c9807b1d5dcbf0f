"""OpenAI endpoints that run one inference per request: their shared part, and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from common.inference_protocol.bodies import EncodedBody, V2Request
from common.inference_protocol.errors import InvalidRequest
from common.inference_protocol.tensors import Tensor, bytes_tensor
from runtime.loading.processors import Processors
from runtime.openai.endpoint import Call
from runtime.openai.requests import Body, EmbeddingBody, InvalidField
from runtime.openai.responses import embeddings
from runtime.protocols.error_responses import JSON
from runtime.protocols.exchange import provenance_headers
from runtime.registration.model_catalog import ModelCatalog
from runtime.serving.predict_service import PredictService
from runtime.tasks.embedding import Embedding
from runtime.wire import DecodedBody, RequestHead, WireProtocol

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Inferences:
    """Runs inferences on tensors and responds with documents of the OpenAI API."""

    service: PredictService
    processors: Processors
    catalog: ModelCatalog

    async def processor(self, head: RequestHead, kind: type[Kind], ability: str) -> Kind:
        """The model's processor; raises InvalidRequest if it is not of class `kind`.

        Also raises as `InFlightRequests.check_admission` does, before any file is fetched.
        """
        self.service.in_flight.check_admission(head)
        spec = await self.catalog.find(head.model, head.generation)
        processor = await self.processors.get(spec)
        if not isinstance(processor, kind):
            raise InvalidRequest(f"model {spec.name} does not {ability}")
        return processor

    async def serve(
        self,
        call: Call[Body],
        inputs: Sequence[Tensor],
        encode: Callable[[Sequence[Tensor]], bytes],
    ) -> None:
        """Infer, and respond with the outputs as JSON; `encode` runs in a thread."""
        result = await self.service.predict(
            call.head,
            WireProtocol.V2,
            DecodedBody(v2=V2Request(tuple(inputs))),
            encode=lambda outputs: EncodedBody(encode(outputs), tuple(JSON)),
        )
        headers = [*result.body.headers, *provenance_headers(result)]
        await call.response.send(result.body.content, headers)

    async def embed(self, call: Call[EmbeddingBody]) -> None:
        """`/openai/v1/embeddings`."""
        processor = await self.processor(call.head, Embedding, "embed texts")
        inputs = _inputs(processor, call.body)
        await self.serve(call, inputs, partial(_encode, processor, call.body))


def _inputs(processor: Embedding, body: EmbeddingBody) -> Sequence[Tensor]:
    """The V2 inputs of a request; raises InvalidField."""
    texts = [each.encode() for each in body.inputs if isinstance(each, str)]
    rows = [each for each in body.inputs if not isinstance(each, str)]
    _check_tokens(rows, processor.vocabulary)
    return processor.preprocess(rows) if rows else [bytes_tensor("text", texts)]


def _encode(processor: Embedding, body: EmbeddingBody, outputs: Sequence[Tensor]) -> bytes:
    """The document of a response."""
    (vectors,) = outputs
    return embeddings(
        vectors.data,
        model=body.model,
        prompt_tokens=processor.count_tokens(body.inputs),
        is_base64=body.encoding_format == "base64",
    )


def _check_tokens(rows: Sequence[list[int]], vocabulary: int) -> None:
    """Raise InvalidField for a token that the model does not have."""
    for row in rows:
        if wrong := [each for each in row if not 0 <= each < vocabulary]:
            raise InvalidField(
                f"input: tokens must be from 0 to {vocabulary - 1}, was {wrong[0]}", param="input"
            )
