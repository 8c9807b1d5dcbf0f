"""Generation of one text at a time, as the network's own `generate` computes it.

For networks whose texts would not be the same in a batch. Each token is a job of the device, so
that other models, and other texts of this one, run in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from common.inference_protocol.errors import PodError
from runtime.device.device_errors import is_out_of_memory
from runtime.device.queue import DeviceModel
from runtime.engines.networks.position_limit import output_limit
from runtime.errors import InferenceFailed, NoRoomToInfer
from runtime.generation.engine import Sampling, TokenChunk, finish_of
from runtime.generation.limits import PAGE_TOKENS, GenerationLimits, cache_shape
from runtime.generation.network_steps import request_config, sampling_defaults, score_steps
from runtime.generation.sampling import adjust_scores

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    from runtime.device.worker import DeviceWorker

logger = logging.getLogger(__name__)


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
                scores = adjust_scores(
                    scores,
                    [self.sampling],
                    generated=[self.ids],
                    texts=[[*self.prompt_ids, *self.ids]],
                )
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
