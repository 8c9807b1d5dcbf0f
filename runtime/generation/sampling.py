"""Selects the next token of each request by that request's own parameters.

The engine takes the largest score of each row. Adding Gumbel noise to scaled scores makes the
largest one a sample of their softmax, so one batch can mix requests with and without sampling, each
with its own seed. The noise depends only on the seed and the token's position: a request has the
same result in every batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import TopPLogitsWarper
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

from runtime.generation.engine import Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers.generation.continuous_batching.requests import (
        FutureRequestState,
        RequestState,
    )

SEED_STEP = 0x9E3779B97F4A7C15
"""Spreads adjacent seeds and positions over all seeds (Knuth's multiplicative hashing)."""
SEED_MASK = (1 << 63) - 1


class PerRequestSampling(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]  # untyped
    """Transformers' logits processor, with each request's `Sampling` and prompt length."""

    supported_kwargs = {"sampling": Sampling, "prompt_tokens": int}  # noqa: RUF012  # transformers' type
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
        rows = [
            adjust_scores(
                scores[index],
                state.logit_processor_kwargs["sampling"],
                generated=_generated(state),
            )
            for index, state in enumerate(self._rows)
        ]
        return torch.cat([torch.stack(rows), scores[len(rows) :]])


def _generated(state: RequestState) -> list[int]:
    """A request's new tokens; a preempted request has some of them at the end of its prompt."""
    ids: list[int] = state.initial_tokens + state.generated_tokens
    return ids[state.logit_processor_kwargs["prompt_tokens"] :]


def adjust_scores(
    scores: torch.Tensor, sampling: Sampling, *, generated: Sequence[int]
) -> torch.Tensor:
    """One request's scores, of shape (vocabulary,), whose largest is its next token.

    Penalties as OpenAI defines them: a token that was generated c times loses
    c * frequency_penalty, and presence_penalty once if c > 0.
    """
    if generated and (sampling.frequency_penalty or sampling.presence_penalty):
        ids, counts = torch.unique(
            torch.tensor(generated, device=scores.device), return_counts=True
        )
        scores = scores.clone()
        scores[ids] -= counts * sampling.frequency_penalty + sampling.presence_penalty
    if sampling.temperature == 0:
        return scores
    scores = scores / sampling.temperature
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores[None])[0]
    return scores + _gumbel_noise(scores, sampling.seed, len(generated))


def _gumbel_noise(like: torch.Tensor, seed: int, position: int) -> torch.Tensor:
    generator = torch.Generator(like.device)
    generator.manual_seed(((seed + 1) * SEED_STEP + position * 0x632BE59BD9B4E019) & SEED_MASK)
    return -torch.empty_like(like).exponential_(generator=generator).log()
