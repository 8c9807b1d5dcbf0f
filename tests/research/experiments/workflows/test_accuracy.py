"""Predictors use what a request says, and none knows more than there is to know."""

import pytest

from research.experiments.workflows.accuracy import AccuracyTask, ceiling, next_step_accuracy
from research.simulated_workflows import constants


def test_words_of_the_prompt_predict_the_card() -> None:
    plain, _ = next_step_accuracy(AccuracyTask("knowledge-card", "markov-prefix", 1, 600))
    ours, _ = next_step_accuracy(AccuracyTask("knowledge-card", "longest-context", 1, 600))
    assert ours > plain + 0.05


def test_no_predictor_knows_more_of_a_debate_than_its_rounds() -> None:
    """Three steps a round are certain; only at the end of a round the likelier case counts."""
    rounds, wrong, reached = 0.0, 0.0, 1.0
    for agrees in constants.AGREES:
        rounds, wrong = rounds + reached, wrong + reached * min(agrees, 1 - agrees)
        reached *= 1 - agrees
    assert ceiling("debate") == pytest.approx(1 - wrong / (3 * rounds + 1), abs=0.003)
