"""Sampling of the next token by OpenAI's parameters."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from runtime.generation.engine import Sampling
from runtime.generation.sampling import adjust_scores

SCORES = torch.tensor([1.0, 3.0, 2.0, -1.0])


def choice(sampling: Sampling, generated: list[int] | None = None) -> int:
    return int(adjust_scores(SCORES, sampling, generated=generated or []).argmax())


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
