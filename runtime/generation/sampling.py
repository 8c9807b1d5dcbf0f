"""Selects the next token of each request by that request's own parameters.

The engine takes the largest score of each row. Adding Gumbel noise to scaled scores makes the
largest one a sample of their softmax, so one batch can mix requests with and without sampling, each
with its own seed. The noise depends only on the seed, the token's position and the token: a request
has the same result in every batch. All rows are adjusted together, without a loop over requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)

from runtime.device.device_tensor import to_device
from runtime.generation.engine import Sampling

if TYPE_CHECKING:
    from transformers.generation.continuous_batching.requests import (
        FutureRequestState,
        RequestState,
    )

SEED_STEP = 0x9E3779B97F4A7C15
"""Spreads adjacent seeds and positions over all seeds (Knuth's multiplicative hashing)."""
POSITION_STEP = 0x632BE59BD9B4E019
SEED_MASK = (1 << 64) - 1


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
        count = len(self._rows)
        if count == 0:
            return scores
        given = [state.logit_processor_kwargs for state in self._rows]
        texts = [_text(*each) for each in zip(self._rows, given, strict=True)]
        rows = scores[:count]
        if any(each["processors"] for each in given):
            rows = torch.cat(
                [
                    each["processors"](_tensor([text], scores), rows[index : index + 1])
                    if each["processors"]
                    else rows[index : index + 1]
                    for index, (each, text) in enumerate(zip(given, texts, strict=True))
                ]
            )
        # A preempted request has some of its new tokens at the end of its prompt.
        rows = adjust_scores(
            rows,
            [each["sampling"] for each in given],
            generated=[t[each["prompt_tokens"] :] for t, each in zip(texts, given, strict=True)],
            texts=texts,
        )
        return rows if count == len(scores) else torch.cat([rows, scores[count:]])


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
    scores: torch.Tensor,
    samplings: Sequence[Sampling],
    *,
    generated: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """Scores of shape (requests, vocabulary); the largest of each row is its next token.

    `texts`: with the prompts; without them `generated` is all that repetitions are counted in.

    Penalties as OpenAI defines them: a token that was generated c times loses
    c * frequency_penalty, and presence_penalty once if c > 0; the one of repetitions as
    transformers does, which counts the prompt too.
    """
    scores = _without_repetition(scores, samplings, texts or generated)
    scores = _shifted_scores(scores, samplings, generated)
    scores = _without_ends(scores, samplings, generated)
    drawn = [index for index, each in enumerate(samplings) if each.temperature > 0]
    if not drawn:
        return scores
    chosen = [samplings[index] for index in drawn]
    positions = [len(generated[index]) for index in drawn]
    rows = _tensor(drawn, scores)
    temperatures = _tensor([each.temperature for each in chosen], scores, scores.dtype)
    heated = scores.index_select(0, rows) / temperatures[:, None]
    if any(each.top_k for each in chosen):
        heated = _likeliest(heated, [each.top_k for each in chosen])
    if any(each.top_p < 1 for each in chosen):
        heated = _nucleus(heated, [each.top_p for each in chosen])
    if any(each.min_p for each in chosen):
        heated = _not_unlikely(heated, [each.min_p for each in chosen])
    noise = _gumbel_noise(heated, [each.seed for each in chosen], positions)
    if len(drawn) == len(samplings):
        return heated + noise
    return scores.index_copy(0, rows, heated + noise)


def _without_repetition(
    scores: torch.Tensor, samplings: Sequence[Sampling], texts: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Source: Keskar et al. 2019, "CTRL", section 4.1, for scores of both signs."""
    seen = [
        (row, token, sampling.repetition_penalty)
        for row, sampling in enumerate(samplings)
        if sampling.repetition_penalty != 1
        for token in set(texts[row])
    ]
    if not seen:
        return scores
    rows, tokens, penalties = zip(*seen, strict=True)
    places = _places(scores, rows, tokens)
    found = scores[places]
    by = _tensor(penalties, scores, scores.dtype)
    return scores.index_put(places, torch.where(found < 0, found * by, found / by))


def _places(
    scores: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    return _tensor(rows, scores), _tensor(tokens, scores)


def _tensor(
    values: Sequence[Any], scores: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """On the device of the scores."""
    return to_device(torch.tensor(values, dtype=dtype), scores.device)


def _shifted_scores(
    scores: torch.Tensor, samplings: Sequence[Sampling], generated: Sequence[Sequence[int]]
) -> torch.Tensor:
    """With the client's bias, and less for tokens that were generated."""
    rows: list[int] = []
    tokens: list[int] = []
    gains: list[float] = []
    for row, (sampling, ids) in enumerate(zip(samplings, generated, strict=True)):
        shifts = list(sampling.logit_bias)
        if sampling.frequency_penalty or sampling.presence_penalty:
            shifts += [
                (token, -count * sampling.frequency_penalty - sampling.presence_penalty)
                for token, count in Counter(ids).items()
            ]
        rows += [row] * len(shifts)
        tokens += [token for token, _ in shifts]
        gains += [gain for _, gain in shifts]
    if not rows:
        return scores
    added = _tensor(gains, scores, scores.dtype)
    return scores.index_put(_places(scores, rows, tokens), added, accumulate=True)


def _without_ends(
    scores: torch.Tensor, samplings: Sequence[Sampling], generated: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Without the tokens that would end a text before its least length."""
    ends = [
        (row, token)
        for row, (sampling, ids) in enumerate(zip(samplings, generated, strict=True))
        if len(ids) < sampling.min_tokens
        for token in sampling.end_ids
    ]
    if not ends:
        return scores
    rows, tokens = zip(*ends, strict=True)
    lowest = torch.full((), -torch.inf, device=scores.device, dtype=scores.dtype)
    return scores.index_put(_places(scores, rows, tokens), lowest)


def _likeliest(scores: torch.Tensor, top_ks: Sequence[int]) -> torch.Tensor:
    """Without all but the `top_k` largest, and those equal to the least of them."""
    size = scores.shape[-1]
    counts = [min(each, size) if each else size for each in top_ks]
    ordered = scores.topk(max(counts), dim=-1).values
    places = _tensor(counts, scores)[:, None] - 1
    return scores.masked_fill(scores < ordered.gather(1, places), -torch.inf)


def _not_unlikely(scores: torch.Tensor, min_ps: Sequence[float]) -> torch.Tensor:
    """Without tokens less likely than `min_p` times the likeliest."""
    likeliest = scores.amax(dim=-1, keepdim=True)
    least = _tensor(min_ps, scores, scores.dtype).log()[:, None]
    return scores.masked_fill(scores < likeliest + least, -torch.inf)


def _nucleus(scores: torch.Tensor, top_ps: Sequence[float]) -> torch.Tensor:
    """Without the tokens that the likeliest ones of a total probability of top_p leave over."""
    ordered, indices = torch.sort(scores, dim=-1)
    left_over = 1 - _tensor(top_ps, scores, torch.float32)
    removed = ordered.float().softmax(dim=-1).cumsum(dim=-1) <= left_over[:, None]
    removed[:, -1] = False  # the likeliest stays
    is_full = left_over <= 0  # rounding may add up to more than 1
    removed &= ~is_full[:, None]
    return scores.masked_fill(removed.scatter(1, indices, removed), -torch.inf)


def _gumbel_noise(
    like: torch.Tensor, seeds: Sequence[int], positions: Sequence[int]
) -> torch.Tensor:
    """Noise of shape (requests, vocabulary), by counter: row and token are hashed to a number.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; the hash is the
    finaliser of splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
    generators").
    """
    keys = [
        _signed(_mix((seed + 1) * SEED_STEP + position * POSITION_STEP))
        for seed, position in zip(seeds, positions, strict=True)
    ]
    tokens = torch.arange(1, like.shape[-1] + 1, device=like.device, dtype=torch.int64)
    state = _tensor(keys, like)[:, None] + tokens * _signed(SEED_STEP)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state.bitwise_xor_(_shifted(state, shift)).mul_(_signed(factor))
    # The upper 23 bits, which the hash's last step does not change: never 0 or 1 in 32-bit floats.
    uniform = _shifted(state, 41).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_().to(like.dtype)


def _mix(value: int) -> int:
    value &= SEED_MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & SEED_MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & SEED_MASK
    return value ^ value >> 31


def _signed(value: int) -> int:
    """The same 64 bits as torch's int64, whose arithmetic wraps around."""
    return value - (1 << 64) if value >> 63 else value


def _shifted(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifted right, with zeros from the left."""
    return (state >> bits).bitwise_and_((1 << (64 - bits)) - 1)
