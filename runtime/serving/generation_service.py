"""Generation requests: a slot, a model held on the device, and tokens to a sink until the end.

What the parts of the pod do for one inference, done for a request that lasts many steps.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kserve.metrics import PREDICT_HIST_TIME

from registry.domain.pod import Stage
from runtime.errors import DeadlinePassed, InvalidRequest, PromptTooLong
from runtime.generation.engine import Finish, Sampling
from runtime.generation.text_stream import TextStream
from runtime.metrics import FIRST_TOKEN_SECONDS, GENERATED_TOKENS, GENERATIONS, STAGE_SECONDS
from runtime.tasks.text_generation import TextGeneration
from runtime.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from concurrent.futures import Executor

    from registry.domain.model import ModelSpec
    from runtime.generation.engine import GenerationEngine
    from runtime.generation.limits import GenerationLimits
    from runtime.generation.processor_sharing import ProcessorSharing
    from runtime.loading.load_coordinator import AcquiredModel, LoadCoordinator
    from runtime.registration.inference_end_notifier import InferenceEndNotifier
    from runtime.registration.measurements import Measurements
    from runtime.registration.model_catalog import ModelCatalog
    from runtime.serving.predict_service import PredictService
    from runtime.wire.request_head import RequestHead


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a caller asks for."""

    prompt_ids: Callable[[TextGeneration], list[int]]
    """Tokens of the prompt; blocks, raises InvalidRequest."""
    max_new_tokens: int | None
    """None: what fits."""
    choices: int
    stops: tuple[str, ...]
    seed: int | None
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one choice."""

    index: int
    text: str
    finish: Finish | None
    token_count: int
    """Tokens made for it."""


class Generation:
    """A request that is about to make tokens."""

    def __init__(
        self,
        wish: GenerationRequest,
        sampling: Sampling,
        prompt_ids: Sequence[int],
        processor: TextGeneration,
        engine: GenerationEngine,
    ) -> None:
        self._wish = wish
        self._sampling = sampling
        self._prompt_ids = prompt_ids
        self._processor = processor
        self._engine = engine
        self.prompt_tokens = len(prompt_ids)

    async def run(self, sink: Callable[[Delta], Awaitable[None]]) -> None:
        """Make all choices, side by side; raises InferenceFailed, QueueFull, or what sink does."""
        if self._wish.choices == 1:
            await self._choose(0, sink)
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for index in range(self._wish.choices):
                    tasks.create_task(self._choose(index, sink))
        except BaseExceptionGroup as group:  # they fail alike: the first says it
            raise group.exceptions[0] from None

    async def _choose(self, index: int, sink: Callable[[Delta], Awaitable[None]]) -> None:
        stream = TextStream(self._processor.tokenizer, self._wish.stops)
        sampling = replace(self._sampling, seed=self._sampling.seed + index)
        began_s = time.monotonic()
        async with aclosing(self._engine.generate(self._prompt_ids, sampling)) as made:
            async for new in made:
                if began_s:
                    FIRST_TOKEN_SECONDS.observe(time.monotonic() - began_s)
                    began_s = 0.0
                GENERATED_TOKENS.inc(len(new.token_ids))
                text = stream.push(new.token_ids)
                if new.finish is not None and not stream.is_stopped:
                    text += stream.finish()
                finish = Finish.STOP if stream.is_stopped else new.finish
                await sink(Delta(index, text, finish, len(new.token_ids)))
                if stream.is_stopped:
                    return


@dataclass(frozen=True, slots=True)
class Opened:
    """A generation and how it came about so far."""

    generation: Generation
    start: str
    stages: Mapping[Stage, float]
    """Seconds per stage."""


@dataclass(frozen=True, slots=True)
class GenerationService:
    """All generations of a pod."""

    service: PredictService
    catalog: ModelCatalog
    coordinator: LoadCoordinator
    end_notifier: InferenceEndNotifier
    measurements: Measurements
    threads: Executor
    limits: GenerationLimits
    shared: ProcessorSharing

    @asynccontextmanager
    async def open(self, head: RequestHead, wish: GenerationRequest) -> AsyncIterator[Opened]:
        """A generation that is ready to run, its slot and model held until the block ends.

        Raises:
            RuntimePackageError: as for any inference; DeadlinePassed also inside the block.
        """
        until_s = time.monotonic() + self.limits.timeout_s
        if head.deadline_s is not None:
            until_s = min(until_s, head.deadline_s)
        async with self.service.admitted(head):
            try:
                spec = await self.catalog.find(head.name, head.generation)
                acquired = await self.coordinator.acquire(
                    spec, token=head.load_token, deadline_s=until_s
                )
                try:
                    acquired.model.device_model.policy = spec.policy  # what the annotations say now
                    with GENERATIONS.track_inprogress():
                        async with _limited(until_s):
                            opened = await self._opened(acquired, wish)
                            began_s = time.monotonic()
                            with self.shared.taken() as share:
                                yield opened
                    self._measured(spec, time.monotonic() - began_s, share.seconds)
                finally:
                    await self.coordinator.release(acquired)
            finally:
                self.end_notifier.notify(head.reservation)

    async def _opened(self, acquired: AcquiredModel, wish: GenerationRequest) -> Opened:
        processor, engine = acquired.model.processor, acquired.model.generator
        if not isinstance(processor, TextGeneration) or engine is None:
            raise InvalidRequest(f"model {acquired.model.spec.name} does not generate text")
        began_s = time.monotonic()
        prompt_ids = await in_thread(self.threads, wish.prompt_ids, processor)
        sampling = self._sampling(wish, len(prompt_ids), engine.context_tokens)
        stages = {Stage.PREPROCESS: time.monotonic() - began_s}
        if acquired.load_s:
            stages[Stage.LOAD] = acquired.load_s
        generation = Generation(wish, sampling, prompt_ids, processor, engine)
        return Opened(generation, acquired.start, stages)

    def _sampling(
        self, wish: GenerationRequest, prompt_tokens: int, context_tokens: int
    ) -> Sampling:
        room = context_tokens - prompt_tokens
        if not prompt_tokens:
            raise InvalidRequest("the prompt has no tokens")
        if (wish.max_new_tokens or 1) > self.limits.max_new_tokens:
            raise InvalidRequest(
                f"an answer may have {self.limits.max_new_tokens} tokens,"
                f" {wish.max_new_tokens} were asked for"
            )
        if (wish.max_new_tokens or 1) > room:
            raise PromptTooLong(
                f"this model's maximum context length is {context_tokens} tokens; the prompt has"
                f" {prompt_tokens}, and {wish.max_new_tokens or 1} or more are asked for"
            )
        return Sampling(
            max_tokens=min(wish.max_new_tokens or room, room, self.limits.max_new_tokens),
            seed=secrets.randbits(62) if wish.seed is None else wish.seed,
            temperature=wish.temperature,
            top_p=wish.top_p,
            presence_penalty=wish.presence_penalty,
            frequency_penalty=wish.frequency_penalty,
        )

    def _measured(self, spec: ModelSpec, seconds: float, share_s: float) -> None:
        """Tell the registry how long an answer holds its slot, and what it takes of the device."""
        PREDICT_HIST_TIME.labels(model_name=spec.name.path_segment).observe(seconds)
        STAGE_SECONDS.labels(stage=Stage.INFER.value).observe(seconds)
        self.measurements.add(spec.key, Stage.INFER.value, seconds)
        self.measurements.add(spec.key, "share", share_s)


@asynccontextmanager
async def _limited(until_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(until_s - time.monotonic()):
            yield
    except TimeoutError as error:
        raise DeadlinePassed("the time for this request ended before its answer did") from error
