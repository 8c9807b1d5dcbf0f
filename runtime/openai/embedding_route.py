"""Embeddings: an inference like any other, with OpenAI's bodies around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.openai.answers import embeddings
from runtime.tasks.embedding import Embedding
from runtime.wire.tensors import bytes_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.openai.exchange import Call
    from runtime.openai.inference import Inferences
    from runtime.openai.requests import EmbeddingBody
    from runtime.wire.tensors import Tensor


@dataclass(frozen=True, slots=True)
class EmbeddingRoute:
    """Answers the endpoint."""

    inferences: Inferences

    async def answer(self, call: Call[EmbeddingBody]) -> None:
        """Answer one request."""
        body = call.body
        processor = await self.inferences.processor(call.head, Embedding, "embed texts")

        def write(outputs: Sequence[Tensor]) -> bytes:
            (vectors,) = outputs
            return embeddings(
                vectors.data,
                model=body.model,
                prompt_tokens=processor.count_tokens(body.texts),
                is_base64=body.encoding_format == "base64",
            )

        texts = bytes_tensor("text", [text.encode() for text in body.texts])
        await self.inferences.answer(call.head, [texts], write, call.reply)
