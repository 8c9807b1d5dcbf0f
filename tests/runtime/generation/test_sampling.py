"""Sampling of the next token by OpenAI's parameters."""

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.continuous_batching.requests import RequestState

from runtime.generation.engine import Sampling
from runtime.generation.sampling import (
    _gumbel_noise,
    _likeliest,
    _not_unlikely,
    _nucleus,
    _text,
    adjust_scores,
)

SCORES = torch.tensor([1.0, 3.0, 2.0, -1.0])


def choice(sampling: Sampling, generated: list[int] | None = None) -> int:
    return int(adjust_scores(SCORES[None], [sampling], generated=[generated or []]).argmax())


def test_temperature_zero_selects_the_likeliest() -> None:
    assert choice(Sampling(1, seed=1, temperature=0)) == 1


def test_draws_follow_the_softmax() -> None:
    count = 4000
    seen = Counter(choice(Sampling(1, seed=seed, temperature=1)) for seed in range(count))
    for token, share in enumerate(torch.softmax(SCORES, 0).tolist()):
        assert seen[token] / count == pytest.approx(share, abs=0.03)


def test_draws_at_neighbouring_positions_are_independent() -> None:
    count = 4000
    generated: list[int] = []
    draws = []
    for _ in range(count):
        draws.append(choice(Sampling(1, seed=5), generated))
        generated.append(0)
    pairs = Counter(itertools.pairwise(draws))
    shares = torch.softmax(SCORES, 0).tolist()
    assert pairs[1, 1] / count == pytest.approx(shares[1] ** 2, abs=0.04)
    assert pairs[1, 2] / count == pytest.approx(shares[1] * shares[2], abs=0.03)


def test_a_lower_temperature_sharpens() -> None:
    seen = Counter(choice(Sampling(1, seed=seed, temperature=0.2)) for seed in range(500))
    assert seen[1] > 480


def test_top_p_leaves_only_the_likeliest() -> None:
    seen = {choice(Sampling(1, seed=seed, top_p=0.8)) for seed in range(500)}
    assert seen == {1, 2}


def test_the_same_seed_and_position_give_the_same_token() -> None:
    first = [choice(Sampling(1, seed=9), [0] * at) for at in range(50)]
    assert first == [choice(Sampling(1, seed=9), [0] * at) for at in range(50)]
    assert first != [choice(Sampling(1, seed=10), [0] * at) for at in range(50)]


def test_penalties_count_what_was_made() -> None:
    greedy = {"max_tokens": 1, "seed": 0, "temperature": 0.0}
    assert choice(Sampling(**greedy, presence_penalty=1.5), [1]) == 2  # type: ignore[arg-type]
    assert choice(Sampling(**greedy, frequency_penalty=0.4), [1, 1]) == 1  # type: ignore[arg-type]
    assert choice(Sampling(**greedy, frequency_penalty=0.4), [1, 1, 1]) == 2  # type: ignore[arg-type]


def test_scores_are_left_as_they_were() -> None:
    before = SCORES.clone()
    choice(Sampling(1, seed=1, presence_penalty=1, top_p=0.5), [1, 2])
    assert torch.equal(SCORES, before)


def test_a_request_has_the_same_token_in_every_batch() -> None:
    samplings = [
        Sampling(1, seed=1, temperature=0),
        Sampling(1, seed=2, temperature=0.7),
        Sampling(1, seed=3, temperature=1.3, top_p=0.6),
        Sampling(1, seed=4, temperature=1.0, top_p=0.9, frequency_penalty=0.5),
        Sampling(1, seed=5, temperature=0, presence_penalty=2.0),
    ]
    generated = [[], [1], [2, 2], [3, 1, 3], [1, 0]]
    scores = torch.randn(5, 200, generator=torch.Generator().manual_seed(0))
    together = adjust_scores(scores, samplings, generated=generated)
    for row, (sampling, ids) in enumerate(zip(samplings, generated, strict=True)):
        alone = adjust_scores(scores[row : row + 1], [sampling], generated=[ids])
        torch.testing.assert_close(together[row : row + 1], alone)


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.6, 0.9, 0.999])
def test_top_p_removes_what_transformers_removes(top_p: float) -> None:
    scores = torch.randn(3, 500, generator=torch.Generator().manual_seed(1))
    expected = TopPLogitsWarper(top_p)(None, scores)
    torch.testing.assert_close(_nucleus(scores, [top_p] * 3), expected)


@pytest.mark.parametrize("top_k", [1, 7, 500, 900])
def test_top_k_removes_what_transformers_removes(top_k: int) -> None:
    scores = torch.randn(3, 500, generator=torch.Generator().manual_seed(1))
    expected = TopKLogitsWarper(top_k)(None, scores)
    torch.testing.assert_close(_likeliest(scores, [top_k] * 3), expected)
    torch.testing.assert_close(_likeliest(scores, [top_k, 0, top_k])[1], scores[1])


@pytest.mark.parametrize("min_p", [0.001, 0.1, 0.9, 1.0])
def test_min_p_removes_what_transformers_removes(min_p: float) -> None:
    scores = torch.randn(3, 500, generator=torch.Generator().manual_seed(1))
    expected = MinPLogitsWarper(min_p)(None, scores)
    torch.testing.assert_close(_not_unlikely(scores, [min_p] * 3), expected)


def test_repetitions_lose_what_transformers_takes_from_them() -> None:
    scores = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    texts = [[1, 2, 2, 9], [4, 0, 7, 7]]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor(texts), scores)
    sampling = Sampling(1, seed=0, temperature=0, repetition_penalty=1.7)
    found = adjust_scores(scores, [sampling] * 2, generated=[[9], [7]], texts=texts)
    torch.testing.assert_close(found, expected)


def test_a_bias_and_a_least_length_change_the_choice() -> None:
    assert choice(Sampling(1, seed=0, temperature=0, logit_bias=((2, 1.5), (3, -1.0)))) == 2
    short = Sampling(1, seed=0, temperature=0, min_tokens=2, end_ids=frozenset({1}))
    assert choice(short, [0]) == 2
    assert choice(short, [0, 0]) == 1


def test_noise_is_gumbels() -> None:
    """Mean: Euler's constant; variance: pi squared over six."""
    noise = _gumbel_noise(torch.zeros(4, 100_000), [0, 1, 2, 2], [0, 0, 0, 1])
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.02)
    correlations = torch.corrcoef(noise) - torch.eye(4)
    assert correlations.abs().max() < 0.02


def test_a_step_makes_no_loop_over_requests() -> None:
    """The number of torch's operators is that of one request."""
    counts = []
    for requests in (1, 16):
        with TorchDispatchCounter() as counter:
            adjust_scores(
                torch.zeros(requests, 50),
                [
                    Sampling(
                        1,
                        seed=seed,
                        top_p=0.9,
                        top_k=9,
                        min_p=0.1,
                        presence_penalty=1,
                        repetition_penalty=2,
                        min_tokens=9,
                        end_ids=frozenset({3}),
                    )
                    for seed in range(requests)
                ],
                generated=[[1, 2]] * requests,
            )
        counts.append(counter.count)
    assert counts[0] == counts[1]


def test_long_texts_are_not_copied_where_nothing_reads_them() -> None:
    """Each step would copy the whole context of each request."""

    class Long(list[int]):
        def __add__(self, other: Any) -> Any:
            raise AssertionError("copied")

    state = RequestState("r", [])
    state.initial_tokens, state.generated_tokens = Long([1, 2, 3]), [4, 5]
    given = {"sampling": Sampling(1, seed=1), "processors": []}
    assert len(_text(state, given)) == 5
    given["sampling"] = Sampling(1, seed=1, presence_penalty=1)
    with pytest.raises(AssertionError, match="copied"):
        _text(state, given)


class TorchDispatchCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
