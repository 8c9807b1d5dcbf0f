"""Selects the next token of each request by that request's own parameters.

The engine takes the largest score of each row: a drawn token leaves no other one possible. A draw
depends only on the seed, the token's position and the scores, so that a request has the same result
in every batch. Transformers' own processors and warpers change the scores, request by request.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

from runtime.generation.engine import Sampling

if TYPE_CHECKING:
    from transformers.generation.continuous_batching.requests import (
        FutureRequestState,
        RequestState,
    )


class PerRequestSampling(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]  # untyped
    """Transformers' logits processor, with each request's `Sampling` and prompt length."""

    supported_kwargs = {  # noqa: RUF012  # transformers' type
        "sampling": Sampling,
        "prompt_tokens": int,
        "processors": LogitsProcessorList,
    }
    ignored_kwargs = ()

    def __init__(self) -> None:
        self._rows: list[RequestState] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Parameters are read from the requests, not from transformers' tensor."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests: Sequence[FutureRequestState]) -> torch.Tensor:
        """Store the requests of the next scores, in the order of the rows."""
        self._rows = [request.state for request in requests]
        return torch.zeros(len(self._rows), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Scores of shape (tokens, vocabulary) whose largest entries are the next tokens."""
        if not self._rows:
            return scores
        rows = []
        for index, state in enumerate(self._rows):
            given, row = state.logit_processor_kwargs, scores[index : index + 1]
            text = _text(state, given)
            if given["processors"]:
                row = given["processors"](torch.tensor([text], device=row.device), row)
            # A preempted request has some of its new tokens at the end of its prompt.
            rows.append(adjust_scores(row, given["sampling"], text, given["prompt_tokens"]))
        return torch.cat([*rows, scores[len(rows) :]])


def _text(state: RequestState, given: Mapping[str, Any]) -> Sequence[int]:
    """Prompt and new tokens; of equal length alone where nothing reads them, as mostly."""
    sampling: Sampling = given["sampling"]
    first: list[int] = state.initial_tokens
    then: list[int] = state.generated_tokens
    is_read = given["processors"] or sampling.repetition_penalty != 1
    if is_read or sampling.frequency_penalty or sampling.presence_penalty:
        return first + then
    return range(len(first) + len(then))


def adjust_scores(
    scores: torch.Tensor, sampling: Sampling, text: Sequence[int], prompt_tokens: int
) -> torch.Tensor:
    """Scores of shape (1, vocabulary), the largest of which is the token that continues the text.

    Penalties as OpenAI defines them: a token that was generated c times loses
    c * frequency_penalty, and presence_penalty once if c > 0; the one of repetitions as
    transformers does, which counts the prompt too.
    """
    if sampling.repetition_penalty != 1:
        processor = RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty))
        scores = processor(torch.tensor([text], device=scores.device), scores)
    gains = dict(sampling.logit_bias)
    if sampling.frequency_penalty or sampling.presence_penalty:
        for token, count in Counter(text[prompt_tokens:]).items():
            lost = count * sampling.frequency_penalty + sampling.presence_penalty
            gains[token] = gains.get(token, 0.0) - lost
    if gains:
        tokens = torch.tensor(list(gains), device=scores.device)
        added = torch.tensor([list(gains.values())], device=scores.device, dtype=scores.dtype)
        scores = scores.index_add(1, tokens, added)
    position = len(text) - prompt_tokens
    if position < sampling.min_tokens and sampling.end_ids:
        ends = torch.tensor(sorted(sampling.end_ids), device=scores.device)
        scores = scores.index_fill(1, ends, -torch.inf)
    return _drawn(scores, sampling, position) if sampling.temperature > 0 else scores


def _drawn(scores: torch.Tensor, sampling: Sampling, position: int) -> torch.Tensor:
    """One token alone, drawn by the softmax of what the sampling leaves of the scores."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(sampling.temperature))])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    shares = warpers(None, scores)[0].softmax(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    at = random.Random(f"{sampling.seed} {position}").random() * float(shares[-1])
    token = min(int(torch.searchsorted(shares, at, right=True)), len(shares) - 1)
    drawn = torch.full_like(scores, -torch.inf)
    drawn[:, token] = 0
    return drawn
