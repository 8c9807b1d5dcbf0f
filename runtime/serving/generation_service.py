"""Generation requests: each holds a slot and a model, and reports its text as it is generated."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from kserve.metrics import PREDICT_HIST_TIME

from common.inference_protocol import InvalidRequest
from registry.domain.estimates import generation_bytes
from registry.domain.model import ModelSpec
from registry.domain.pod import Stage
from runtime.errors import DeadlinePassed, PromptTooLong
from runtime.generation.engine import Finish, GenerationEngine, Sampling, TextStream, TokenChunk
from runtime.generation.limits import GenerationLimits, ProcessorSharing
from runtime.inference_request import RequestHead
from runtime.loading.load_coordinator import AcquiredModel
from runtime.metrics import FIRST_TOKEN_SECONDS, GENERATED_TOKENS, GENERATIONS, STAGE_SECONDS
from runtime.serving.predict_service import PredictService
from runtime.tasks.text_generation import TextOutputs, TextPrompts
from runtime.threads import in_thread

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt that the model's chat template makes."""

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    """Variables of the template, and how its text ends."""


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
    temperature: float | None = None
    """None, here and below: what the model's generation_config.json says, else no effect."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end a text beside the model's own."""
    ignores_end: bool = False
    """Whether the model's own end tokens do not end a text."""
    keeps_stop: bool = False
    keeps_special: bool = False
    truncates_to: int | None = None
    """Tokens of a prompt that are kept, from its end; -1: as many as the context takes."""


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
    processor: TextOutputs
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
        errors: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                for index in range(total):
                    tasks.create_task(self._choose(index, on_delta))
        except (BaseExceptionGroup, asyncio.CancelledError) as error:
            error.__traceback__ = None  # the group's frame keeps the error, which would be a cycle
            # All choices fail for the same cause.
            errors += error.exceptions[:1] if isinstance(error, BaseExceptionGroup) else [error]
        if errors:
            raise errors.pop()

    async def _choose(self, index: int, on_delta: Callable[[TextDelta], Awaitable[None]]) -> None:
        prompt, choice = divmod(index, self.request.choices)
        stream = self._stream(prompt)
        sampling = self.samplings[prompt]
        sampling = replace(sampling, seed=sampling.seed + choice)
        began_s = time.monotonic()
        async with aclosing(self.engine.generate(self.prompts_ids[prompt], sampling)) as chunks:
            async for chunk in chunks:
                if began_s:
                    FIRST_TOKEN_SECONDS.observe(time.monotonic() - began_s)
                    began_s = 0.0
                GENERATED_TOKENS.inc(len(chunk.token_ids))
                text = stream.push(self._shown(chunk))
                if chunk.finish is not None and not stream.is_stopped:
                    text += stream.finish()
                finish = Finish.STOP if stream.is_stopped else chunk.finish
                await on_delta(TextDelta(index, text, finish, len(chunk.token_ids)))
                if stream.is_stopped:
                    return

    def _stream(self, prompt: int) -> TextStream:
        request, defaults = self.request, self.engine.defaults
        return TextStream(
            self.processor.encoder.tokenizer,
            (*request.stops, *defaults.stops),
            prompt_ids=self.prompts_ids[prompt] if self.engine.continues_prompt else (),
            keeps_stop=request.keeps_stop,
            keeps_special=request.keeps_special,
        )

    def _shown(self, chunk: TokenChunk) -> Sequence[int]:
        """The tokens of a text: that which ended it is none, as in vLLM."""
        is_end = chunk.finish is Finish.STOP and not self.request.keeps_stop
        return chunk.token_ids[:-1] if is_end else chunk.token_ids


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A model that one request uses."""

    spec: ModelSpec
    acquired: AcquiredModel

    @property
    def stages(self) -> dict[Stage, float]:
        """Seconds before the generation."""
        return {Stage.LOAD: self.acquired.load_s} if self.acquired.load_s else {}


@dataclass(frozen=True, slots=True)
class GenerationService:
    service: PredictService
    limits: GenerationLimits
    device_time: ProcessorSharing = field(default_factory=lambda: ProcessorSharing(time.monotonic))

    @asynccontextmanager
    async def open(
        self, head: RequestHead, request: GenerationRequest
    ) -> AsyncIterator[Generation]:
        """A generation that is ready to run, its slot and model held until the block ends.

        Raises:
            PodError: as for any inference; DeadlinePassed also inside the block.
        """
        async with self.hold(head) as held:
            generation = await self._prepare(held, request)
            new_tokens = request.max_new_tokens or 0
            async with self.measured(held.spec, generation_bytes(head.body_bytes or 0, new_tokens)):
                yield generation

    @asynccontextmanager
    async def hold(self, head: RequestHead) -> AsyncIterator[HeldModel]:
        """The request's model, its slot held until the block ends; raises as `open`."""
        until_s = time.monotonic() + self.limits.timeout_s
        if head.deadline_s is not None:
            until_s = min(until_s, head.deadline_s)
        with self.service.in_flight.admit(head):
            spec = await self.service.catalog.find(head.model, head.generation)
            acquired = await self.service.acquire(head, spec, deadline_s=until_s)
            try:
                acquired.model.device_model.policy = spec.policy  # the current annotations
                with GENERATIONS.track_inprogress():
                    async with _time_limit(until_s):
                        yield HeldModel(spec, acquired)
            finally:
                self.service.release(head, acquired)

    @asynccontextmanager
    async def measured(self, spec: ModelSpec, size_bytes: int) -> AsyncIterator[None]:
        """Records how long the block took, as an inference of this size (`generation_bytes`)."""
        began_s = time.monotonic()
        with self.device_time.measure() as share:
            yield
        self._record(spec, size_bytes, time.monotonic() - began_s, share.seconds)

    async def _prepare(self, held: HeldModel, request: GenerationRequest) -> Generation:
        acquired = held.acquired
        processor, engine = acquired.model.processor, acquired.model.generator
        if not isinstance(processor, TextOutputs) or engine is None:
            does = "does not generate text"
            if isinstance(processor, TextOutputs):
                kind = acquired.model.call(lambda network, _: network.config.model_type)
                does = f"({kind}) generates whole texts alone, as texts of it change one another"
            raise InvalidRequest(
                f"model {acquired.model.spec.name} {does}; ask it by KServe's V1"
                " protocol (/v1/models/NAME:predict) or V2 (/v2/models/NAME/infer)"
            )
        began_s = time.monotonic()
        key = acquired.model.spec.key
        threads = self.service.threads_for(acquired.model.processor)
        prompts = [
            await self._prompt_ids(key, processor.prompts, each, threads)
            for each in request.prompts
        ]
        prompts = [_truncated(each, request, engine) for each in prompts]
        vocabulary = processor.prompts.vocabulary
        _check_tokens("stop_token_ids", request.stop_ids, vocabulary)
        _check_tokens("logit_bias", [token for token, _ in request.logit_bias], vocabulary)
        end_ids = frozenset[int]() if request.ignores_end else processor.end_ids
        samplings = [
            self._sampling(request, len(each), engine, end_ids | request.stop_ids)
            for each in prompts
        ]
        stages = {Stage.PREPROCESS: time.monotonic() - began_s, **held.stages}
        return Generation(request, samplings, prompts, processor, engine, acquired.start, stages)

    async def _prompt_ids(
        self, key: str, prompts: TextPrompts, prompt: Prompt, threads: Executor
    ) -> list[int]:
        """Tokens of the prompt; raises InvalidRequest, ExpressionRefused."""
        if isinstance(prompt, Conversation):
            text = await prompts.render(key, prompt.messages, prompt.options)
            return await in_thread(threads, partial(prompts.ids, text, is_rendered=True))
        if isinstance(prompt, str):
            return await in_thread(threads, prompts.ids, prompts.prefix + prompt)
        return await in_thread(self.service.threads, prompts.check_ids, prompt)

    def _sampling(
        self,
        request: GenerationRequest,
        prompt_tokens: int,
        engine: GenerationEngine,
        end_ids: frozenset[int],
    ) -> Sampling:
        context_tokens, defaults = engine.context_tokens, engine.defaults
        # A decoder that does not continue the prompt has the whole context for the new text.
        taken = prompt_tokens if engine.continues_prompt else max(0, prompt_tokens - context_tokens)
        available = context_tokens - taken
        requested = request.max_new_tokens or 1
        if not prompt_tokens:
            raise InvalidRequest("the prompt has no tokens")
        if requested > self.limits.max_new_tokens:
            raise InvalidRequest(
                f"a response may have {self.limits.max_new_tokens} tokens,"
                f" {requested} were requested"
            )
        if requested > available or prompt_tokens > context_tokens:
            raise PromptTooLong(
                f"this model's maximum context length is {context_tokens} tokens; the prompt has"
                f" {prompt_tokens}, and at least {requested} more are requested"
            )
        most = min(
            request.max_new_tokens or request.default_tokens, available, self.limits.max_new_tokens
        )
        least = _chosen(request.min_tokens, defaults.min_tokens, 0)
        if request.min_tokens and least > most:
            raise InvalidRequest(f"min_tokens may be max_tokens ({most}) at most, was {least}")
        return Sampling(
            max_tokens=most,
            seed=secrets.randbits(62) if request.seed is None else request.seed,
            temperature=_chosen(request.temperature, defaults.temperature, 1.0),
            top_p=_chosen(request.top_p, defaults.top_p, 1.0),
            top_k=_chosen(request.top_k, defaults.top_k, 0),
            min_p=_chosen(request.min_p, defaults.min_p, 0.0),
            repetition_penalty=_chosen(
                request.repetition_penalty, defaults.repetition_penalty, 1.0
            ),
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            logit_bias=request.logit_bias,
            min_tokens=min(least, most),
            end_ids=end_ids,
        )

    def _record(self, spec: ModelSpec, size_bytes: int, seconds: float, share_s: float) -> None:
        """Record how long the generation held its slot, and its share of the device's time."""
        PREDICT_HIST_TIME.labels(model_name=spec.name.path_segment).observe(seconds)
        STAGE_SECONDS.labels(stage=Stage.INFER.value).observe(seconds)
        self.service.measurements.add_inference(spec.key, seconds, size_bytes)
        self.service.measurements.add(spec.key, "share", share_s)


def _chosen(requested: T | None, default: T | None, neutral: T) -> T:
    if requested is not None:
        return requested
    return neutral if default is None else default


def _truncated(
    prompt_ids: list[int], request: GenerationRequest, engine: GenerationEngine
) -> list[int]:
    """The end of a prompt, if the request asks for it."""
    if request.truncates_to is None:
        return prompt_ids
    kept = request.truncates_to
    if kept < 0:
        new_tokens = (request.max_new_tokens or 1) if engine.continues_prompt else 0
        kept = max(1, engine.context_tokens - new_tokens)
    return prompt_ids[-kept:]


def _check_tokens(field: str, token_ids: Iterable[int], vocabulary: int) -> None:
    """Raises InvalidRequest for a token that the model does not have."""
    wrong = [each for each in token_ids if not 0 <= each < vocabulary]
    if wrong:
        raise InvalidRequest(f"{field} must name tokens from 0 to {vocabulary - 1}, was {wrong[0]}")


@asynccontextmanager
async def _time_limit(until_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(until_s - time.monotonic()):
            yield
    except TimeoutError as error:
        raise DeadlinePassed("the request's time limit passed before its last token") from error
