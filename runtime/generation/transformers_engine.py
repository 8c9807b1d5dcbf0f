"""Continuous batching with transformers' paged cache and scheduler, one step at a time.

Transformers' manager would run a thread of its own beside the device worker. This engine uses its
parts instead: each step (one token for every active request, and a part of new prompts) is one job
of the device worker, so that other models run between steps. While one runs, the next is queued:
the device does not wait for the event loop, on which the tokens of the last step are sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchProcessor,
    OutputRouter,
)

from common.inference_protocol import PodError
from runtime.device.device_errors import is_device_error, is_out_of_memory
from runtime.device.queue import ASSUMED_DEADLINE_S, DeviceModel, InferenceResult
from runtime.errors import DeviceFull, InferenceFailed, ModelInvalid, NoRoomToInfer
from runtime.generation.cache_memory import PAGE_TOKENS, STEP_TOKENS, cache_shape
from runtime.generation.engine import Sampling, TokenChunk, finish_of
from runtime.generation.limits import GenerationLimits
from runtime.generation.sampling import PerRequestSampling
from runtime.generation.sequential_engine import (
    Scores,
    request_config,
    sampling_defaults,
    score_processors,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from transformers.generation.continuous_batching.requests import GenerationOutput

    from runtime.device.worker import DeviceWorker, Job

logger = logging.getLogger(__name__)

OutputQueue: TypeAlias = "asyncio.Queue[GenerationOutput | partial[Exception]]"
"""Outputs of one request, or what makes its error."""
MAX_STEPS = 2
"""At the device at once: one that runs, and the next."""


class _Outputs(OutputRouter):  # type: ignore[misc]  # transformers ships no types here
    """Queues the outputs of each step by request, on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.queues: dict[str, OutputQueue] = {}
        """Of the requests whose last output has not come."""

    def deliver(self, output: GenerationOutput) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        """Called in the device's thread."""
        self._loop.call_soon_threadsafe(self._append, outputs)

    def _append(self, outputs: list[GenerationOutput]) -> None:
        for output in outputs:
            if output.request_id in self.queues:
                self.queues[output.request_id].put_nowait(output)
                if output.is_finished():
                    del self.queues[output.request_id]


class _Processor(ContinuousBatchProcessor):  # type: ignore[misc]  # transformers ships no types here
    """Frees its memory without a collection of garbage and an emptied cache of the device.

    Transformers' does both when it is dropped, which blocks the event loop and the device for
    longer than many loads take.
    """

    def __del__(self) -> None:
        self.inputs_and_outputs = None  # its CUDA graphs go before the cache that they use


class TransformersEngine:
    """One network's generation, without a task of its own: the end of a step queues another."""

    continues_prompt = True

    def __init__(
        self,
        network: PreTrainedModel,
        device: DeviceWorker,
        device_model: DeviceModel,
        limits: GenerationLimits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Called in the device's thread.

        Raises ModelInvalid for an unsupported architecture, DeviceFull without room for a cache.
        """
        shape = cache_shape(network.config, limits, network.dtype.itemsize)
        self.context_tokens = shape.context_tokens
        self._device = device
        self._device_model = device_model
        self._limits = limits
        self.defaults = sampling_defaults(network)
        self._outputs = _Outputs(loop)
        self._added = 0
        """Requests so far."""
        self._steps: set[Job] = set()
        """At the device: the one that runs, and the next."""
        self._step_s = 0.0
        """Time of the last one."""
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
        configurations = _configurations(network)
        attention = [each._attn_implementation_internal for each in configurations]
        try:
            self._manager = network.init_continuous_batching(
                GenerationConfig(do_sample=False, eos_token_id=-1), config
            )
            self._manager.output_router = self._outputs
            self._manager.logit_processor = _logits_processors()
            self._processor = self._manager._create_batch_processor()
            self._processor.__class__ = _Processor
            _use_default_stream(self._processor)
            self._paged = [
                (each, each._attn_implementation_internal)
                for each, own in zip(configurations, attention, strict=True)
                if each._attn_implementation_internal != own
            ]
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
        finally:  # other inferences share the network
            for each, own in zip(configurations, attention, strict=True):
                each._attn_implementation_internal = own
        config = request_config(network, ())
        self._has_processors = bool(score_processors(network, config, 1))

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[TokenChunk, None]:
        self._added += 1
        request_id = str(self._added)
        outputs: OutputQueue = asyncio.Queue()
        self._outputs.queues[request_id] = outputs
        returned = 0
        is_finished = False
        try:
            self._add(request_id, prompt_ids, sampling, self._processors(prompt_ids, sampling))
            self._keep_stepping()
            while not is_finished:
                output = await outputs.get()
                if isinstance(output, partial):
                    raise output()
                is_finished = output.is_finished()
                if output.error is not None:
                    kind = NoRoomToInfer if self._failure else InferenceFailed
                    raise kind(f"generation failed: {output.error}") from self._failure
                token_ids = tuple(output.generated_tokens[returned:])
                returned += len(token_ids)
                finish = finish_of(token_ids, sampling) if is_finished else None
                yield TokenChunk(token_ids, finish)
        finally:
            if self._outputs.queues.pop(request_id, None) is not None:
                self._manager.cancel_request(request_id)
            await self._rest()

    def close(self) -> None:
        del self._processor, self._manager

    def _add(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        processors: LogitsProcessorList,
    ) -> None:
        self._manager.add_request(
            list(prompt_ids),
            request_id,
            max_new_tokens=sampling.max_tokens,
            streaming=True,
            eos_token_id=sorted(sampling.end_ids) or [-1],
            sampling=sampling,
            prompt_tokens=len(prompt_ids),
            processors=processors,
        )

    def _processors(self, prompt_ids: Sequence[int], sampling: Sampling) -> LogitsProcessorList:
        """What generation_config.json asks for beside a `Sampling`, which few models' does."""
        if not self._has_processors:
            return LogitsProcessorList()
        network = self._manager.model
        config = request_config(network, sorted(sampling.end_ids))
        config.max_length = len(prompt_ids) + sampling.max_tokens
        return score_processors(network, config, len(prompt_ids))

    def _keep_stepping(self) -> None:
        """Have the next step queued beside the one that runs, while a text is unfinished."""
        while self._outputs.queues and len(self._steps) < MAX_STEPS:
            # As urgent as if it were queued at the end of the running one.
            due_s = time.monotonic() + ASSUMED_DEADLINE_S + len(self._steps) * self._step_s
            try:
                step = self._device.submit(self._step, model=self._device_model, due_s=due_s)
            except PodError as error:  # the queue is full, or the model is broken
                if not self._steps:
                    self._fail(error)
                return
            self._steps.add(step)
            step.future.add_done_callback(partial(self._stepped, step, self._added))

    def _stepped(self, step: Job, added: int, ended: asyncio.Future[InferenceResult[bool]]) -> None:
        """`added`: requests when the step was queued."""
        self._steps.discard(step)
        if ended.cancelled():
            return
        if (error := ended.exception()) is not None:
            self._fail(error)
            return
        self._step_s = ended.result().compute_s
        if not ended.result().value and not self._steps and added == self._added:
            self._fail(InferenceFailed("the engine has no work, but a request waits for tokens"))
        self._keep_stepping()

    def _fail(self, error: BaseException) -> None:
        """End all unfinished texts, each with an error of its own."""
        kind = type(error) if isinstance(error, PodError) else InferenceFailed
        text = str(error) if isinstance(error, PodError) else f"generation failed: {error}"
        for request_id, outputs in self._outputs.queues.items():
            outputs.put_nowait(partial(kind, text))
            self._manager.cancel_request(request_id)
        self._outputs.queues.clear()

    async def _rest(self) -> None:
        """Without unfinished texts: return once no step uses the network, also if cancelled."""
        cancelled: asyncio.CancelledError | None = None
        while self._steps and not self._outputs.queues:
            self._steps = {each for each in self._steps if not self._device.withdraw(each)}
            try:
                if self._steps:
                    await asyncio.wait([each.future for each in self._steps])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _step(self) -> bool:
        """Generate a token for every request, in the device's thread; False if there is no work."""
        processor = self._processor
        model = self._device_model
        planned = self._device.times.planned_rows.get(model.key)
        processor.scheduler.max_requests_per_batch = self._limits.batch_size(model.policy, planned)
        try:
            return self._advance()
        except Exception as error:  # a network may raise any error
            logger.exception("a generation step failed")
            self._failure = MemoryError(str(error)) if is_out_of_memory(error) else None
            processor.fail_all_requests(error)
            if is_device_error(error) and not is_out_of_memory(error):
                raise  # the worker finds out whether the device is lost
        return True

    def _advance(self) -> bool:
        processor = self._processor
        if not processor.prepare_next_batch():
            return False
        with _paged_attention(self._paged):
            processor._generation_step(self._manager.model)
        processor.update_batch()
        return True

    def try_texts(self, prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> Scores:
        """Scores of each text while these tokens are forced on all, in the device's thread.

        The second text begins a step after the first. Raises the network's errors.
        """
        recorders = [_Recorder(tokens) for _ in prompts]
        names = [f"trial-{index}" for index in range(len(prompts))]
        for name, prompt, recorder in zip(names, prompts, recorders, strict=True):
            sampling = Sampling(max_tokens=len(tokens), seed=0, temperature=0)
            self._add(name, prompt, sampling, LogitsProcessorList([recorder]))
            self._advance()
        while self._advance():
            pass
        return [recorder.scores for recorder in recorders]


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


class _Recorder(LogitsProcessor):  # type: ignore[misc]  # transformers ships no types here
    """Keeps the scores of a text, and has it go on with given tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self.scores: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self._tokens[len(self.scores)]
        self.scores.append(scores[0].float())
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token] = 0
        return forced


def _configurations(network: PreTrainedModel) -> list[PretrainedConfig]:
    """Of the network and its parts, each once."""
    parts = (each for each in network.modules() if isinstance(each, PreTrainedModel))
    return list({id(each.config): each.config for each in parts}.values())


@contextmanager
def _paged_attention(paged: Sequence[tuple[PretrainedConfig, str]]) -> Iterator[None]:
    """In the block, the attention of a step where it is another one than the network's own."""
    own = [each._attn_implementation_internal for each, _ in paged]
    try:
        for each, implementation in paged:
            each._attn_implementation_internal = implementation
        yield
    finally:
        for (each, _), implementation in zip(paged, own, strict=True):
            each._attn_implementation_internal = implementation
