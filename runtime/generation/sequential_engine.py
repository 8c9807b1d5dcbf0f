"""Generation of one text at a time, as the network's own `generate` computes it.

For networks whose texts would not be the same in a batch. Each token is a job of the device:
`generate` itself runs until the last token, so here its preparations and its loop are a Python
generator, which runs in the device's thread.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig

from common.inference_protocol import PodError
from runtime.device.device_errors import is_out_of_memory
from runtime.device.queue import DeviceModel
from runtime.engines.networks.configuration import output_limit
from runtime.errors import InferenceFailed, NoRoomToInfer
from runtime.generation.cache_memory import PAGE_TOKENS, cache_shape
from runtime.generation.engine import Sampling, SamplingDefaults, TokenChunk, finish_of
from runtime.generation.limits import GenerationLimits
from runtime.generation.sampling import adjust_scores

if TYPE_CHECKING:
    from transformers import LogitsProcessorList, PreTrainedModel

    from runtime.device.worker import DeviceWorker

logger = logging.getLogger(__name__)

ScoreSteps = Generator[torch.Tensor, torch.Tensor, None]
"""Scores of the next token of each row, in 32 bits; takes the tokens that are chosen."""
Scores = list[list[torch.Tensor]]
"""By text, then by new token: of the whole vocabulary, in 32 bits."""

_OWN = {
    "do_sample": False, "num_beams": 1, "num_return_sequences": 1, "repetition_penalty": None,
    "min_new_tokens": None, "stop_strings": None, "cache_implementation": None, "use_cache": True,
    "prompt_lookup_num_tokens": None, "penalty_alpha": None, "token_healing": False,
    "output_scores": False, "output_logits": False, "return_dict_in_generate": False,
    "max_time": None, "prefill_chunk_size": None, "watermarking_config": None,
}  # fmt: skip
"""Of generation_config.json: what `Sampling` decides, and loops of other kinds."""


def score_steps(
    network: PreTrainedModel,
    ids: torch.Tensor,
    config: GenerationConfig,
    *,
    max_tokens: int,
    mask: torch.Tensor | None = None,
) -> ScoreSteps:
    """Steps of texts of shape (rows, tokens); `mask` is 0 where they are padded."""
    config = copy.copy(config)
    config.max_new_tokens, config.max_length = max_tokens, None
    mask = torch.ones_like(ids) if mask is None else mask
    with _configured(network, config):
        steps: ScoreSteps = network.generate(
            ids, attention_mask=mask, generation_config=config, custom_generate=_steps
        )
    return steps


def _steps(
    network: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> ScoreSteps:
    """In place of transformers' `_sample`, whose loop this is."""
    del stopping_criteria  # the caller stops
    is_encoder_decoder = network.config.is_encoder_decoder
    outputs = network._prefill(input_ids, generation_config, inputs)
    while True:
        inputs = network._update_model_kwargs_for_generation(
            outputs, inputs, is_encoder_decoder=is_encoder_decoder
        )
        scores = logits_processor(input_ids, outputs.logits[:, -1].float())
        del outputs
        tokens = yield scores
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
        prepared = network.prepare_inputs_for_generation(
            input_ids, next_sequence_length=1 if inputs["use_cache"] else None, **inputs
        )
        outputs = network(**prepared, return_dict=True)


@contextmanager
def _configured(network: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """In the block the network has no other defaults: `generate` fills in what is not set."""
    before = network.generation_config
    network.generation_config = config
    try:
        yield
    finally:
        network.generation_config = before


def request_config(network: PreTrainedModel, end_ids: Sequence[int]) -> GenerationConfig:
    """The model's generation_config.json without what the sampling of each request decides."""
    config = copy.deepcopy(network.generation_config)
    for name, value in _OWN.items():
        setattr(config, name, value)
    config.eos_token_id = list(end_ids) or None
    if config.pad_token_id is None:
        config.pad_token_id = 0  # else `generate` warns; a single text has no padding
    return config


def trial_config(network: PreTrainedModel) -> GenerationConfig:
    """What decides nothing but how a text begins."""
    known = network.generation_config
    return GenerationConfig(
        do_sample=False,
        bos_token_id=known.bos_token_id,
        pad_token_id=known.pad_token_id or 0,
        decoder_start_token_id=known.decoder_start_token_id,
        use_cache=True,
    )


def score_processors(
    network: PreTrainedModel, config: GenerationConfig, prompt_tokens: int
) -> LogitsProcessorList:
    """Those of transformers that a request's configuration asks for, such as banned words."""
    config = copy.copy(config)
    network._prepare_special_tokens(config, True, device=network.device)
    return network._get_logits_processor(
        config, input_ids_seq_length=prompt_tokens, device=network.device
    )


def sampling_defaults(network: PreTrainedModel) -> SamplingDefaults:
    """As vLLM reads generation_config.json: `do_sample` decides nothing in OpenAI's protocol."""
    config = network.generation_config
    strings = config.stop_strings or ()
    return SamplingDefaults(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        min_tokens=config.min_new_tokens,
        stops=(strings,) if isinstance(strings, str) else tuple(strings),
    )


@dataclass(slots=True)
class _Text:
    network: PreTrainedModel
    prompt_ids: Sequence[int]
    sampling: Sampling
    config: GenerationConfig
    ids: list[int] = field(default_factory=list)
    """New tokens."""

    def steps(self) -> Iterator[int]:
        """The next tokens, each computed when it is asked for; in the device's thread."""
        prompt = torch.tensor([self.prompt_ids], device=self.network.device)
        steps = score_steps(self.network, prompt, self.config, max_tokens=self.sampling.max_tokens)
        with closing(steps):
            scores = next(steps)
            while True:
                text = [*self.prompt_ids, *self.ids]
                scores = adjust_scores(scores, self.sampling, text, len(self.prompt_ids))
                token = scores.argmax(dim=-1)
                self.ids.append(int(token))
                yield self.ids[-1]
                scores = steps.send(token)


class SequentialEngine:
    """One network's generation. Texts that are generated at the same time take turns to step."""

    def __init__(
        self,
        network: PreTrainedModel,
        device: DeviceWorker,
        device_model: DeviceModel,
        limits: GenerationLimits,
    ) -> None:
        shape = cache_shape(network.config, limits, network.dtype.itemsize)
        self.context_tokens = shape.context_tokens
        if network.config.is_encoder_decoder:
            limit = output_limit(network.config)
            self.context_tokens = min(self.context_tokens, limit or self.context_tokens)
        self.continues_prompt = not network.config.is_encoder_decoder
        self.defaults = sampling_defaults(network)
        self._network = network
        self._device = device
        self._device_model = device_model
        contexts = shape.pages * PAGE_TOKENS // shape.context_tokens
        # Each text that has begun holds keys and values of its own.
        self._places = asyncio.Semaphore(max(1, min(contexts, limits.max_concurrent)))

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[TokenChunk, None]:
        config = request_config(self._network, sorted(sampling.end_ids))
        text = _Text(self._network, prompt_ids, sampling, config)
        async with self._places:
            steps = text.steps()
            while True:
                token = await self._step(steps)
                is_finished = token in sampling.end_ids or len(text.ids) >= sampling.max_tokens
                finish = finish_of([token], sampling) if is_finished else None
                yield TokenChunk((token,), finish)
                if is_finished:
                    return

    async def _step(self, steps: Iterator[int]) -> int:
        try:
            return (await self._device.run(lambda: next(steps), model=self._device_model)).value
        except PodError:
            raise
        except Exception as error:  # a network may raise any error
            logger.exception("a generation step failed")
            kind = NoRoomToInfer if is_out_of_memory(error) else InferenceFailed
            raise kind(f"generation failed: {error}") from error

    def close(self) -> None:
        del self._network
