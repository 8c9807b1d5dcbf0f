"""Generation requests: each holds a slot and a model, and reports its text as it is generated."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from kserve.metrics import PREDICT_HIST_TIME

from registry.domain.pod import Stage
from runtime.errors import DeadlinePassed, InvalidRequest, PromptTooLong
from runtime.generation.engine import Finish, GenerationEngine, Sampling
from runtime.generation.text_stream import TextStream
from runtime.metrics import FIRST_TOKEN_SECONDS, GENERATED_TOKENS, GENERATIONS, STAGE_SECONDS
from runtime.tasks.text_generation import TextGeneration
from runtime.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from registry.domain.model import ModelSpec
    from runtime.generation.limits import GenerationLimits
    from runtime.generation.processor_sharing import ProcessorSharing
    from runtime.loading.load_coordinator import AcquiredModel
    from runtime.registration.measurements import Measurements
    from runtime.registration.model_catalog import ModelCatalog
    from runtime.serving.predict_service import PredictService
    from runtime.wire.request_head import RequestHead


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt that the model's chat template makes."""

    messages: Sequence[Mapping[str, Any]]


Prompt: TypeAlias = str | Sequence[int] | Conversation
"""Text, tokens, or messages."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    prompts: Sequence[Prompt]
    max_new_tokens: int | None
    default_tokens: int
    """Without `max_new_tokens`: as many at most, fewer where the model's context ends."""
    choices: int
    """Of each prompt."""
    stops: tuple[str, ...]
    seed: int | None
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one choice, and the number of tokens it was made from.

    Choices are numbered from the first prompt's first to the last prompt's last.
    """

    index: int
    text: str
    finish: Finish | None
    token_count: int


@dataclass(frozen=True, slots=True)
class Generation:
    request: GenerationRequest
    samplings: Sequence[Sampling]
    """One per prompt, as their rooms in the context differ."""
    prompts_ids: Sequence[Sequence[int]]
    processor: TextGeneration
    engine: GenerationEngine
    start: str
    """`warm`, or the tier from which the model was loaded."""
    stages: Mapping[Stage, float]
    """Seconds per stage before the generation."""

    async def run(self, on_delta: Callable[[TextDelta], Awaitable[None]]) -> None:
        """Generate all choices concurrently; raises the engine's errors and `on_delta`'s."""
        total = len(self.prompts_ids) * self.request.choices
        if total == 1:
            await self._choose(0, on_delta)
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for index in range(total):
                    tasks.create_task(self._choose(index, on_delta))
        except BaseExceptionGroup as group:  # all choices fail for the same cause
            raise group.exceptions[0] from None

    async def _choose(self, index: int, on_delta: Callable[[TextDelta], Awaitable[None]]) -> None:
        stream = TextStream(self.processor.tokenizer, self.request.stops)
        prompt, choice = divmod(index, self.request.choices)
        sampling = self.samplings[prompt]
        sampling = replace(sampling, seed=sampling.seed + choice)
        began_s = time.monotonic()
        async with aclosing(self.engine.generate(self.prompts_ids[prompt], sampling)) as chunks:
            async for chunk in chunks:
                if began_s:
                    FIRST_TOKEN_SECONDS.observe(time.monotonic() - began_s)
                    began_s = 0.0
                GENERATED_TOKENS.inc(len(chunk.token_ids))
                text = stream.push(chunk.token_ids)
                if chunk.finish is not None and not stream.is_stopped:
                    text += stream.finish()
                finish = Finish.STOP if stream.is_stopped else chunk.finish
                await on_delta(TextDelta(index, text, finish, len(chunk.token_ids)))
                if stream.is_stopped:
                    return


@dataclass(frozen=True, slots=True)
class GenerationService:
    service: PredictService
    catalog: ModelCatalog
    measurements: Measurements
    limits: GenerationLimits
    device_time: ProcessorSharing

    @asynccontextmanager
    async def open(
        self, head: RequestHead, request: GenerationRequest
    ) -> AsyncIterator[Generation]:
        """A generation that is ready to run, its slot and model held until the block ends.

        Raises:
            RuntimePackageError: as for any inference; DeadlinePassed also inside the block.
        """
        until_s = time.monotonic() + self.limits.timeout_s
        if head.deadline_s is not None:
            until_s = min(until_s, head.deadline_s)
        async with self.service.in_flight.admit(head):
            spec = await self.catalog.find(head.model, head.generation)
            async with self.service.acquire(head, spec, deadline_s=until_s) as acquired:
                acquired.model.device_model.policy = spec.policy  # the current annotations
                with GENERATIONS.track_inprogress():
                    async with _time_limit(until_s):
                        generation = await self._prepare(acquired, request)
                        began_s = time.monotonic()
                        with self.device_time.measure() as share:
                            yield generation
                self._record(spec, time.monotonic() - began_s, share.seconds)

    async def _prepare(self, acquired: AcquiredModel, request: GenerationRequest) -> Generation:
        processor, engine = acquired.model.processor, acquired.model.generator
        if not isinstance(processor, TextGeneration) or engine is None:
            raise InvalidRequest(f"model {acquired.model.spec.name} does not generate text")
        began_s = time.monotonic()
        key = acquired.model.spec.key
        prompts = [await self._prompt_ids(key, processor, each) for each in request.prompts]
        samplings = [self._sampling(request, len(each), engine.context_tokens) for each in prompts]
        stages = {Stage.PREPROCESS: time.monotonic() - began_s}
        if acquired.load_s:
            stages[Stage.LOAD] = acquired.load_s
        return Generation(request, samplings, prompts, processor, engine, acquired.start, stages)

    async def _prompt_ids(self, key: str, processor: TextGeneration, prompt: Prompt) -> list[int]:
        """Tokens of the prompt; raises InvalidRequest, ExpressionRefused."""
        threads = self.service.threads_for(processor)
        if isinstance(prompt, Conversation):
            text = await processor.render_chat(key, prompt.messages)
            return await in_thread(threads, partial(processor.prompt_ids, text, is_rendered=True))
        if isinstance(prompt, str):
            return await in_thread(threads, processor.prompt_ids, prompt)
        return await in_thread(self.service.threads, processor.check_ids, prompt)

    def _sampling(
        self, request: GenerationRequest, prompt_tokens: int, context_tokens: int
    ) -> Sampling:
        available = context_tokens - prompt_tokens
        requested = request.max_new_tokens or 1
        if not prompt_tokens:
            raise InvalidRequest("the prompt has no tokens")
        if requested > self.limits.max_new_tokens:
            raise InvalidRequest(
                f"a response may have {self.limits.max_new_tokens} tokens,"
                f" {requested} were requested"
            )
        if requested > available:
            raise PromptTooLong(
                f"this model's maximum context length is {context_tokens} tokens; the prompt has"
                f" {prompt_tokens}, and at least {requested} more are requested"
            )
        return Sampling(
            max_tokens=min(
                request.max_new_tokens or request.default_tokens,
                available,
                self.limits.max_new_tokens,
            ),
            seed=secrets.randbits(62) if request.seed is None else request.seed,
            temperature=request.temperature,
            top_p=request.top_p,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
        )

    def _record(self, spec: ModelSpec, seconds: float, share_s: float) -> None:
        """Record how long the generation held its slot, and its share of the device's time."""
        PREDICT_HIST_TIME.labels(model_name=spec.name.path_segment).observe(seconds)
        STAGE_SECONDS.labels(stage=Stage.INFER.value).observe(seconds)
        self.measurements.add(spec.key, Stage.INFER.value, seconds)
        self.measurements.add(spec.key, "share", share_s)


@asynccontextmanager
async def _time_limit(until_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(until_s - time.monotonic()):
            yield
    except TimeoutError as error:
        raise DeadlinePassed("the request's time limit passed before its last token") from error
