"""Continuous batching with transformers' paged cache and scheduler, one step at a time.

Transformers' manager would run a thread of its own beside the device worker. This engine uses its
parts instead: each step (one token for every active request, and a part of new prompts) is one job
of the device worker, so that other models run between steps.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchProcessor,
    OutputRouter,
)

from runtime.device.device_errors import is_device_error, is_out_of_memory
from runtime.errors import DeviceFull, InferenceFailed, ModelInvalid, NoRoomToInfer
from runtime.generation.engine import Finish, Sampling, TokenChunk
from runtime.generation.limits import (
    PAGE_TOKENS,
    STEP_TOKENS,
    Attention,
    GenerationLimits,
    cache_shape,
)
from runtime.generation.sampling import PerRequestSampling

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from transformers import PreTrainedModel
    from transformers.generation.continuous_batching.requests import GenerationOutput

    from runtime.device.device_model import DeviceModel
    from runtime.device.forward_graphs import GraphMaker
    from runtime.device.worker import DeviceWorker

logger = logging.getLogger(__name__)


class _Outputs(OutputRouter):  # type: ignore[misc]  # transformers ships no types here
    """Queues the outputs of each step by request, on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.queues: dict[str, deque[GenerationOutput]] = {}

    def deliver(self, output: GenerationOutput) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        """Called in the device's thread."""
        self._loop.call_soon_threadsafe(self._append, outputs)

    def _append(self, outputs: list[GenerationOutput]) -> None:
        for output in outputs:
            if output.request_id in self.queues:
                self.queues[output.request_id].append(output)


class _Processor(ContinuousBatchProcessor):  # type: ignore[misc]  # transformers ships no types here
    """Frees its memory without a collection of garbage and an emptied cache of the device.

    Transformers' does both when it is dropped, which blocks the event loop and the device for
    longer than many loads take.
    """

    def __del__(self) -> None:
        self.inputs_and_outputs = None  # its CUDA graphs go before the cache that they use


class TransformersEngine:
    """One network's generation, without a task of its own: waiting requests take turns to step."""

    def __init__(
        self,
        network: PreTrainedModel,
        device: DeviceWorker,
        device_model: DeviceModel,
        limits: GenerationLimits,
        loop: asyncio.AbstractEventLoop,
        graphs: GraphMaker | None = None,
    ) -> None:
        """Called in the device's thread.

        `graphs`: captures steps without prompts, where pages are read in place: else no two steps
        have inputs of one shape.
        Raises ModelInvalid for an unsupported architecture, DeviceFull without room for a cache.
        """
        shape = cache_shape(network.config, limits, network.dtype.itemsize)
        self.context_tokens = shape.context_tokens
        self._device = device
        self._device_model = device_model
        self._limits = limits
        self._eos_ids = _eos_ids(network)
        self._outputs = _Outputs(loop)
        self._sequence = itertools.count()
        self._turn = asyncio.Lock()
        self._failure: MemoryError | None = None
        """Set if the last failed step was out of memory; without its frames, which hold tensors."""
        config = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=shape.pages,
            max_batch_tokens=STEP_TOKENS,
            max_requests_per_batch=limits.max_concurrent,
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
        )
        try:
            self._manager = network.init_continuous_batching(
                GenerationConfig(do_sample=False, eos_token_id=self._eos_ids), config
            )
            self._manager.output_router = self._outputs
            self._manager.logit_processor = _logits_processors()
            with self._cache_attention():
                self._processor = self._manager._create_batch_processor()
            self._processor.__class__ = _Processor
            _use_default_stream(self._processor)
            if limits.attention is Attention.PAGED:
                from runtime.generation.paged_runner import read_in_place

                read_in_place(self._processor, self.context_tokens, graphs)
        except Exception as error:  # each unsupported kind of attention fails in its own way
            if is_out_of_memory(error):
                raise DeviceFull(
                    f"the device has no room for a key-value cache: {error}"
                ) from error
            if is_device_error(error):
                raise
            raise ModelInvalid(
                f"{network.config.model_type} cannot generate with continuous batching: {error}"
            ) from error

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[TokenChunk, None]:
        request_id = str(next(self._sequence))
        outputs: deque[GenerationOutput] = deque()
        self._outputs.queues[request_id] = outputs
        returned = 0
        is_finished = False
        try:
            self._manager.add_request(
                list(prompt_ids),
                request_id,
                max_new_tokens=sampling.max_tokens,
                streaming=True,
                eos_token_id=self._eos_ids,
                sampling=sampling,
                prompt_tokens=len(prompt_ids),
            )
            while not is_finished:
                await self._step_until(outputs)
                output = outputs.popleft()
                is_finished = output.is_finished()
                if output.error is not None:
                    kind = NoRoomToInfer if self._failure else InferenceFailed
                    raise kind(f"generation failed: {output.error}") from self._failure
                token_ids = tuple(output.generated_tokens[returned:])
                returned += len(token_ids)
                yield TokenChunk(token_ids, self._finish(token_ids) if is_finished else None)
        finally:
            del self._outputs.queues[request_id]
            if not is_finished:
                self._manager.cancel_request(request_id)

    def close(self) -> None:
        del self._processor, self._manager

    def _finish(self, token_ids: tuple[int, ...]) -> Finish:
        ended = bool(token_ids) and token_ids[-1] in self._eos_ids
        return Finish.STOP if ended else Finish.LENGTH

    async def _step_until(self, outputs: deque[GenerationOutput]) -> None:
        """Return once there are outputs; requests without any take turns to make a step."""
        while not outputs:
            async with self._turn:
                if outputs:
                    return
                try:
                    stepped = await self._device.run(self._step, model=self._device_model)
                except RuntimeError as error:
                    raise InferenceFailed(f"generation failed: {error}") from error
                has_stepped = stepped.value
            if not has_stepped and not outputs:
                raise InferenceFailed("the engine has no work, but a request waits for tokens")

    def _cache_attention(self) -> AbstractContextManager[None]:
        """The attention for which a cache is made; that of the network itself by default."""
        if self._limits.attention is Attention.SDPA:
            return nullcontext()
        from runtime.generation.paged_attention import paged_network  # imports torch's compiler

        return paged_network(self._manager.model)

    def _step(self) -> bool:
        """Generate a token for every request, in the device's thread; False if there is no work."""
        processor = self._processor
        model = self._device_model
        planned = self._device.times.planned_rows.get(model.key)
        processor.scheduler.max_requests_per_batch = self._limits.batch_size(model.policy, planned)
        try:
            if not processor.prepare_next_batch():
                return False
            processor._generation_step(self._manager.model)
            processor.update_batch()
        except Exception as error:  # a network may raise any error
            logger.exception("a generation step failed")
            self._failure = MemoryError(str(error)) if is_out_of_memory(error) else None
            processor.fail_all_requests(error)
            if is_device_error(error) and not is_out_of_memory(error):
                raise  # the worker finds out whether the device is lost
        return True


def _use_default_stream(processor: Any) -> None:
    """Compute on the stream of all other inference, where the inputs of a step are written.

    On a stream of its own, transformers would wait neither for the last input nor for weights, and
    memory freed on one stream could not be reused on the other.
    """
    processor.inputs_and_outputs.compute_stream = None
    processor.offloading_manager._compute_stream = None


def _logits_processors() -> ContinuousBatchingLogitsProcessorList:
    """`PerRequestSampling`, without transformers' own processors."""
    processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([PerRequestSampling()]))
    processors.tensors_required = 1
    return processors


def _eos_ids(network: PreTrainedModel) -> list[int]:
    """Tokens that end a generation; [-1] if the model names none."""
    declared = network.generation_config.eos_token_id
    if declared is None:
        declared = network.config.get_text_config().eos_token_id
    ids = declared if isinstance(declared, list) else [declared]
    return [int(each) for each in ids if each is not None] or [-1]
