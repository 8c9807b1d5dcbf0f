"""The engine for a network: several texts together where a trial shows that they stay the same.

Transformers has no list of networks whose batches are right: some attend to the padding, or to
other texts, without an error. A few tokens are generated in either way, with the network's own
weights, and their scores compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from runtime.device.device_errors import is_device_error, is_out_of_memory
from runtime.device.queue import DeviceModel
from runtime.engines.networks.configuration import is_never_padded, position_limit, tolerance
from runtime.errors import DeviceFull, ModelInvalid
from runtime.generation.cache_memory import DEFAULT_CONTEXT
from runtime.generation.engine import GenerationEngine
from runtime.generation.limits import GenerationLimits
from runtime.generation.sequential_engine import (
    Scores,
    ScoreSteps,
    SequentialEngine,
    score_steps,
    trial_config,
)
from runtime.generation.transformers_engine import TransformersEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from runtime.device.worker import DeviceWorker

logger = logging.getLogger(__name__)
SHORT_TOKENS: Final = 3
LONG_TOKENS: Final = 24
LONGEST_WINDOW: Final = 64
"""A text goes beyond a sliding window of at most so many tokens; longer ones take too long."""
NEW_TOKENS: Final = 3


@dataclass(frozen=True, slots=True)
class BatchTrial:
    """How texts of a network may be computed together."""

    is_padded: bool
    """As rows of one batch with padding."""
    is_continuous: bool
    """Each with pages of a key-value cache."""
    takes_turns: bool = True
    """A token of each in turn; some networks hold a text's state themselves, or draw numbers."""


def may_batch_continuously(network: PreTrainedModel) -> bool:
    """Whether its attention is of the kind that can be replaced by one over pages."""
    return bool(
        network._supports_attention_backend
        and not network._is_stateful
        and not network.config.is_encoder_decoder
    )


def try_batches(
    network: PreTrainedModel, engine: TransformersEngine | None, *, pads_left: bool
) -> BatchTrial:
    """Compare texts together with each alone, in the device's thread.

    Raises what the network raises for a text alone, and errors of the device.
    """
    prompts, tokens = _texts(network)
    alone = [_scores(network, [each], tokens, pads_left=pads_left)[0] for each in prompts]
    most = tolerance(network)

    def is_equal(found: Scores) -> bool:
        return all(_is_near(one, other, most) for one, other in zip(alone, found, strict=True))

    kind = network.config.model_type
    try:
        is_padded = not is_never_padded(network.config) and is_equal(
            _scores(network, prompts, tokens, pads_left=pads_left)
        )
    except Exception as error:  # networks that take no padding fail in their own ways
        if is_device_error(error):
            raise
        is_padded = False
    if not is_padded:
        logger.info("texts run alone: padding changes them", extra={"architecture": kind})
    is_continuous = False
    if engine is not None:
        try:
            is_continuous = is_equal(engine.try_texts(prompts, tokens))
        except Exception as error:
            if is_device_error(error):
                raise
            logger.info("no continuous batching", extra={"architecture": kind, "error": error})
        else:
            if not is_continuous:
                logger.info(
                    "no continuous batching: it changes texts", extra={"architecture": kind}
                )
    takes_turns = is_continuous or is_equal(_scores_in_turn(network, prompts, tokens))
    return BatchTrial(is_padded, is_continuous, takes_turns)


def _texts(network: PreTrainedModel) -> tuple[list[list[int]], list[int]]:
    """A short and a long prompt, and the tokens that continue both."""
    text = network.config.get_text_config()
    windows = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size")]
    short = [each for each in windows if isinstance(each, int) and 0 < each <= LONGEST_WINDOW]
    context = position_limit(network.config) or DEFAULT_CONTEXT
    longest = max(1, min(max([LONG_TOKENS, *(each + 8 for each in short)]), context - 8))
    special = [getattr(text, f"{name}_token_id", None) for name in ("pad", "eos", "bos")]
    usual = [each for each in range(min(text.vocab_size, 4096)) if each not in special]
    count = SHORT_TOKENS + longest + NEW_TOKENS
    ids = [usual[(7 + 31 * index) % len(usual)] for index in range(count)]
    return [ids[:SHORT_TOKENS], ids[SHORT_TOKENS:-NEW_TOKENS]], ids[-NEW_TOKENS:]


def _scores(
    network: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[int],
    *,
    pads_left: bool,
) -> Scores:
    """Of texts that are continued by these tokens, as rows of one batch."""
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        columns = slice(width - len(prompt), None) if pads_left else slice(len(prompt))
        ids[row, columns], mask[row, columns] = torch.tensor(prompt), 1
    device, options = network.device, trial_config(network)
    ids, mask = ids.to(device), mask.to(device)
    steps = score_steps(network, ids, options, max_tokens=len(tokens), mask=mask)
    return _forced([steps], [len(prompts)], tokens, device)


def _scores_in_turn(
    network: PreTrainedModel, prompts: Sequence[Sequence[int]], tokens: Sequence[int]
) -> Scores:
    """Of texts that are continued by these tokens, a step of each in turn."""
    device, options = network.device, trial_config(network)
    texts = [torch.tensor([prompt], device=device) for prompt in prompts]
    steps = [score_steps(network, each, options, max_tokens=len(tokens)) for each in texts]
    return _forced(steps, [1] * len(steps), tokens, device)


def _forced(
    steps: Sequence[ScoreSteps], rows: Sequence[int], tokens: Sequence[int], device: torch.device
) -> Scores:
    """The scores of all rows of these texts, each of which goes on with the tokens."""
    by_token = [[row for each in steps for row in next(each)]]
    for token in tokens[:-1]:
        chosen = [torch.full((count,), token, device=device) for count in rows]
        pairs = zip(steps, chosen, strict=True)
        by_token.append([row for each, choice in pairs for row in each.send(choice)])
    for each in steps:
        each.close()
    return [list(scores) for scores in zip(*by_token, strict=True)]


def _is_near(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor], most: float) -> bool:
    """Whether most of a text's scores are equal: in 16 bits a rounding may choose other experts."""
    distances = []
    for a, b in zip(one, other, strict=True):
        left, right = (torch.nan_to_num(each, posinf=0, neginf=0) for each in (a, b))
        spread = (left - left.mean()).norm().clamp(min=1e-30)
        distances.append(float((left - right).norm() / spread))
    return sorted(distances)[len(distances) // 2] <= most


def open_engine(
    network: PreTrainedModel,
    device: DeviceWorker,
    device_model: DeviceModel,
    limits: GenerationLimits,
    loop: asyncio.AbstractEventLoop,
    *,
    pads_left: bool,
    known: BatchTrial | None,
) -> tuple[GenerationEngine | None, BatchTrial]:
    """The engine, and what the trial found; called in the device's thread.

    None for a network whose texts change even if they take turns: it generates whole texts alone.
    `known`: of an earlier network of this configuration, so that nothing is tried again.
    Raises ModelInvalid for a network that cannot generate, DeviceFull without room for a cache.
    """
    is_wanted = known.is_continuous if known else may_batch_continuously(network)
    engine = None
    if is_wanted:
        try:
            engine = TransformersEngine(network, device, device_model, limits, loop)
        except ModelInvalid:
            if known:
                raise
    try:
        trial = known or try_batches(network, engine, pads_left=pads_left)
    except Exception as error:  # networks that cannot generate fail in their own ways
        if is_out_of_memory(error):
            raise DeviceFull(f"the device has no room to generate: {error}") from error
        if is_device_error(error):
            raise
        raise ModelInvalid(f"{network.config.model_type} cannot generate text: {error}") from error
    if engine is not None and trial.is_continuous:
        return engine, trial
    if not trial.takes_turns:
        return None, trial
    return SequentialEngine(network, device, device_model, limits), trial
