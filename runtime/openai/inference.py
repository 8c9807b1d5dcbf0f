"""An inference with tensors in and out, for endpoints that put OpenAI's bodies around one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from runtime.errors import InvalidRequest
from runtime.protocols.response import JSON, provenance_headers
from runtime.threads import in_thread
from runtime.wire.bodies import ReadBody, WireProtocol
from runtime.wire.v2 import LENGTH_HEADER, V2Request, decode_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from runtime.loading.processors import Processors
    from runtime.protocols.response import HttpResponse
    from runtime.registration.model_catalog import ModelCatalog
    from runtime.serving.predict_service import PredictService
    from runtime.wire.request_head import RequestHead
    from runtime.wire.tensors import Tensor

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Inferences:
    """What such endpoints need of the pod."""

    service: PredictService
    processors: Processors
    catalog: ModelCatalog
    threads: Executor

    async def processor(self, head: RequestHead, kind: type[Kind], does: str) -> Kind:
        """The model's processor; raises InvalidRequest for a model that does not do what it should.

        Also raises as `PredictService.check_open` does, before any file is fetched.
        """
        self.service.check_open(head)
        spec = await self.catalog.find(head.name, head.generation)
        processor = await self.processors.get(spec)
        if not isinstance(processor, kind):
            raise InvalidRequest(f"model {spec.name} does not {does}")
        return processor

    async def answer(
        self,
        head: RequestHead,
        inputs: Sequence[Tensor],
        write: Callable[[Sequence[Tensor]], bytes],
        reply: HttpResponse,
    ) -> None:
        """Infer, and answer with what `write` makes of the outputs, in a thread."""
        body = ReadBody(v2=V2Request(tuple(inputs), is_binary=True))
        answer = await self.service.answer(head, WireProtocol.V2, body)
        length = dict(answer.body.headers)[LENGTH_HEADER]
        content = await in_thread(
            self.threads, lambda: write(decode_outputs(answer.body.content, length))
        )
        await reply.whole(content, [*JSON, *provenance_headers(answer)])
