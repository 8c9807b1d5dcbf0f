"""Sampling of the next token by OpenAI's parameters."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor
from transformers.generation.continuous_batching.requests import RequestState

from runtime.generation.engine import Sampling
from runtime.generation.sampling import _text, adjust_scores

SCORES = torch.tensor([1.0, 3.0, 2.0, -1.0])


def choice(sampling: Sampling, generated: list[int] | None = None) -> int:
    return int(adjust_scores(SCORES[None], sampling, generated or [], 0).argmax())


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


@pytest.mark.parametrize(
    ("limits", "kept"),
    [({"top_k": 2}, {1, 2}), ({"min_p": 0.3}, {1, 2}), ({"top_k": 9, "top_p": 0.01}, {1})],
)
def test_what_is_left_out_is_never_drawn(limits: dict[str, Any], kept: set[int]) -> None:
    assert {choice(Sampling(1, seed=seed, **limits)) for seed in range(500)} == kept


def test_scores_that_are_no_numbers_give_a_token_all_the_same() -> None:
    scores = torch.full((1, 4), torch.nan)
    assert 0 <= int(adjust_scores(scores, Sampling(1, seed=1), [], 0).argmax()) < 4


def test_repetitions_lose_what_transformers_takes_from_them() -> None:
    scores = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    texts = [[1, 2, 2, 9], [4, 0, 7, 7]]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor(texts), scores)
    sampling = Sampling(1, seed=0, temperature=0, repetition_penalty=1.7)
    for row, text in enumerate(texts):
        found = adjust_scores(scores[row : row + 1], sampling, text, 3)
        torch.testing.assert_close(found[0], expected[row])


def test_a_bias_and_a_least_length_change_the_choice() -> None:
    assert choice(Sampling(1, seed=0, temperature=0, logit_bias=((2, 1.5), (3, -1.0)))) == 2
    short = Sampling(1, seed=0, temperature=0, min_tokens=2, end_ids=frozenset({1}))
    assert choice(short, [0]) == 2
    assert choice(short, [0, 0]) == 1


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
