"""Continuous batching with transformers' own paged cache and scheduler, a step at a time.

Transformers' manager would run a thread of its own beside the device worker. Here its parts are
driven instead: each step (one token for every request under way, and a piece of new prompts) is one
job of the device worker, so other models take their turns between steps.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.continuous_api import OutputRouter

from runtime.device.device_errors import is_device_lost, is_out_of_memory
from runtime.errors import DeviceFull, InferenceFailed, ModelInvalid, NoRoomToInfer
from runtime.generation.engine import Finish, Sampling, TokenChunk
from runtime.generation.limits import PAGE_TOKENS, cache_shape
from runtime.generation.sampling import PerRequestSampling

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from transformers import PreTrainedModel
    from transformers.generation.continuous_batching.requests import GenerationOutput

    from runtime.device.device_model import DeviceModel
    from runtime.device.worker import DeviceWorker
    from runtime.generation.limits import GenerationLimits

logger = logging.getLogger(__name__)

STEP_TOKENS = 512
"""Tokens of one step: long prompts go in over several, so that no step takes the device long."""


class _Inboxes(OutputRouter):  # type: ignore[misc]  # transformers ships no types here
    """Hands what a step made to those who wait for it, on their event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.open: dict[str, deque[GenerationOutput]] = {}

    def deliver(self, output: GenerationOutput) -> None:
        """One request's news, from the device's thread."""
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        """The news of a step, from the device's thread."""
        self._loop.call_soon_threadsafe(self._hand_over, outputs)

    def _hand_over(self, outputs: list[GenerationOutput]) -> None:
        for output in outputs:
            if output.request_id in self.open:
                self.open[output.request_id].append(output)


class TransformersEngine:
    """One network's generation. It has no task of its own: those who wait take turns to step."""

    def __init__(
        self,
        network: PreTrainedModel,
        device: DeviceWorker,
        device_model: DeviceModel,
        limits: GenerationLimits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Made in the device's thread.

        Raises ModelInvalid for an architecture it cannot run, DeviceFull without room for a cache.
        """
        shape = cache_shape(network.config, limits)
        self.context_tokens = shape.context_tokens
        self._device = device
        self._device_model = device_model
        self._limits = limits
        self._eos_ids = _eos_ids(network)
        self._inboxes = _Inboxes(loop)
        self._sequence = itertools.count()
        self._turn = asyncio.Lock()
        self._failure: MemoryError | None = None
        """Where the last step that failed had no room; without its frames, which hold tensors."""
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
            self._manager.output_router = self._inboxes
            self._manager.logit_processor = _sampling_alone()
            self._processor = self._manager._create_batch_processor()
            _stay_on_one_stream(self._processor)
        except Exception as error:  # each kind of attention it does not know fails in its own way
            if is_device_lost(error):
                raise
            if is_out_of_memory(error):
                raise DeviceFull(f"there is no room for a key-value cache: {error}") from error
            raise ModelInvalid(
                f"{network.config.model_type} cannot generate with continuous batching: {error}"
            ) from error

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[TokenChunk, None]:
        """New tokens as they are made; see `Engine`."""
        request_id = str(next(self._sequence))
        inbox: deque[GenerationOutput] = deque()
        self._inboxes.open[request_id] = inbox
        told = 0
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
                await self._step_until(inbox)
                output = inbox.popleft()
                is_finished = output.is_finished()
                if output.error is not None:
                    kind = NoRoomToInfer if self._failure else InferenceFailed
                    raise kind(f"generation failed: {output.error}") from self._failure
                token_ids = tuple(output.generated_tokens[told:])
                told += len(token_ids)
                yield TokenChunk(token_ids, self._finish(token_ids) if is_finished else None)
        finally:
            del self._inboxes.open[request_id]
            if not is_finished:
                self._manager.cancel_request(request_id)

    def close(self) -> None:
        """Drop the network and the cache."""
        del self._processor, self._manager

    def _finish(self, token_ids: tuple[int, ...]) -> Finish:
        ended = bool(token_ids) and token_ids[-1] in self._eos_ids
        return Finish.STOP if ended else Finish.LENGTH

    async def _step_until(self, inbox: deque[GenerationOutput]) -> None:
        """Return when there is news; whoever has none when the device is free makes a step."""
        while not inbox:
            async with self._turn:
                if inbox:
                    return
                has_worked = (await self._device.run(self._step, model=self._device_model)).value
            if not has_worked and not inbox:
                raise InferenceFailed("the engine has no work, though a request waits for tokens")

    def _step(self) -> bool:
        """One token for every request, in the device's thread; False: there was nothing to do."""
        processor = self._processor
        processor.scheduler.max_requests_per_batch = self._limits.at_once(self._device_model.policy)
        try:
            if not processor.prepare_next_batch():
                return False
            processor._generation_step(self._manager.model)
            processor.update_batch()
        except Exception as error:  # whatever a network raises ends the requests of this step
            logger.exception("a generation step failed")
            self._failure = MemoryError(str(error)) if is_out_of_memory(error) else None
            processor.fail_all_requests(error)
            if is_device_lost(error):
                raise
        return True


def _stay_on_one_stream(processor: Any) -> None:
    """Compute where the inputs of a step are written, on the stream of all other inference.

    Transformers would compute on a stream of its own beside it, and waits there neither for the
    last input nor for weights; memory that one stream frees is none for the other, either.
    """
    processor.inputs_and_outputs.compute_stream = None
    processor.offloading_manager._compute_stream = None


def _sampling_alone() -> ContinuousBatchingLogitsProcessorList:
    """Our choice of tokens, and none of transformers' processors."""
    processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([PerRequestSampling()]))
    processors.tensors_required = 1
    return processors


def _eos_ids(network: PreTrainedModel) -> list[int]:
    """Tokens that end an answer; none where the model names none."""
    declared = network.generation_config.eos_token_id
    if declared is None:
        declared = network.config.get_text_config().eos_token_id
    ids = declared if isinstance(declared, list) else [declared]
    return [int(each) for each in ids if each is not None] or [-1]
