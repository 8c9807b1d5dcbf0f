"""What happens to a body before and after the network; both parts block and run in threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from runtime.errors import InvalidRequest
from runtime.wire.bodies import ReadBody, write_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.tasks.task import Processor
    from runtime.wire.tensors import Tensor
    from runtime.wire.v2 import EncodedBody


async def simulate(seconds: float) -> None:
    """Hold the request for a while, for experiments."""
    if seconds:
        await asyncio.sleep(seconds)


def preprocessed(processor: Processor, body: ReadBody) -> tuple[Tensor, ...]:
    """The network's tensors from a body; raises InvalidRequest."""
    items = (
        processor.read_instances(body.instances)
        if body.v2 is None
        else processor.read_tensors(body.v2.inputs)
    )
    try:
        return processor.batching.checked(processor.preprocess(items))
    except (ValueError, TypeError, OSError) as error:
        raise InvalidRequest(f"the input cannot be preprocessed: {error}") from error


def postprocessed(
    processor: Processor, body: ReadBody, outputs: Sequence[Tensor], answer_name: str
) -> EncodedBody:
    """The answer's body from what the network gave."""
    final = processor.postprocess(outputs)
    predictions: list[Any] = processor.predictions(final) if body.v2 is None else []
    return write_answer(body, final, predictions=predictions, model_name=answer_name)
