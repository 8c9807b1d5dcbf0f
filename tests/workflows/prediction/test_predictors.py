"""Predictors of the next step: the paper's two readings, ours, and how they are scored."""

import random
from collections.abc import Callable, Sequence

import pytest

from research.experiments.workflows.accuracy import Accuracy, ObservedRun, score_and_learn
from research.simulated_workflows.placers import (
    PREDICTORS,
    NextStepPredictor,
    markov_last,
    markov_prefix,
)
from workflows.predict import (
    END,
    MAX_STEPS,
    InputPositions,
    LongestContext,
    StepCounts,
    most_likely,
    predicted_steps,
    request_features,
)


def learn(predictor: NextStepPredictor, *runs: str, features: frozenset[str] = frozenset()) -> None:
    score_and_learn(predictor, [ObservedRun(list(run), features, 0.0) for run in runs], Accuracy())


def following(predictor: NextStepPredictor) -> Callable[[Sequence[str]], dict[str, float]]:
    return lambda steps: predictor.probabilities(steps, (), 0.0)


def test_the_last_step_alone_mixes_what_the_whole_prefix_tells_apart() -> None:
    last, prefix = markov_last(), markov_prefix()
    for predictor in (last, prefix):
        learn(predictor, "acx", "acx", "bcy")
    assert last.probabilities("bc", (), 0.0) == {"x": 2 / 3, "y": 1 / 3}
    assert prefix.probabilities("bc", (), 0.0) == {"y": 1.0}
    assert prefix.probabilities("", (), 0.0) == {"a": 2 / 3, "b": 1 / 3}
    assert prefix.probabilities("acx", (), 0.0) == {END: 1.0}


def test_an_unseen_prefix_is_predicted_from_its_latest_steps() -> None:
    predictor = LongestContext()
    learn(predictor, *["abc"] * 20)
    assert markov_prefix().probabilities("zb", (), 0.0) == {}
    assert most_likely(predictor.probabilities("zb", (), 0.0)) == "c"


def test_few_observations_of_a_long_prefix_do_not_outweigh_many_of_a_short_one() -> None:
    predictor = LongestContext()
    learn(predictor, *["bc"] * 50, "abd")
    found = predictor.probabilities("ab", (), 0.0)
    assert 0.2 < found["d"] < 0.9
    learn(predictor, *["abd"] * 20)
    assert predictor.probabilities("ab", (), 0.0)["d"] > 0.9


@pytest.mark.parametrize("name", PREDICTORS)
def test_probabilities_add_up_to_one(name: str) -> None:
    predictor, rng = PREDICTORS[name](), random.Random(3)
    for _ in range(50):
        steps = rng.choices("abc", k=rng.randrange(5))
        learn(predictor, "".join(steps), features=frozenset(rng.choices("xyz", k=2)))
    for steps in (["a"], ["b", "c"], []):
        assert sum(predictor.probabilities(steps, ("x", "y"), 0.0).values()) == pytest.approx(1.0)


def test_words_of_the_request_tell_which_domain_model_comes_next() -> None:
    """The paper's KNOWLEDGECARD: steps alone can not tell it."""
    rng = random.Random(5)
    domains = {"sport": "goal match team", "film": "actor scene plot", "law": "court judge clause"}
    accuracy = {name: Accuracy() for name in ("longest-context", "markov-prefix")}
    predictors = {name: PREDICTORS[name]() for name in accuracy}
    for index in range(400):
        domain = rng.choice(sorted(domains))
        words = rng.choices(domains[domain].split(), k=3) + rng.choices(["the", "who", "when"], k=3)
        features = request_features({"question": " ".join(words)})
        run = ObservedRun(["language-model", domain, "language-model"], features, float(index))
        for name, predictor in predictors.items():
            if index == 200:
                accuracy[name] = Accuracy()
            score_and_learn(predictor, [run], accuracy[name])
    assert accuracy["longest-context"].likeliest > 0.98
    assert accuracy["markov-prefix"].likeliest < 0.9


def test_old_habits_fade() -> None:
    predictor = LongestContext(half_life_s=10.0)
    for now_s, steps in [(0.0, "ab"), (100.0, "ac")]:
        score_and_learn(predictor, [ObservedRun(steps, (), now_s)] * 10, Accuracy())
    assert predictor.probabilities("a", (), 100.0)["c"] > 0.95


def test_a_clock_set_back_changes_no_count() -> None:
    counts = StepCounts(half_life_s=10.0)
    counts.add(("a",), "b", 100.0)
    assert counts.after(("a",), 50.0) == {"b": 1.0}
    counts.add(("a",), "b", float("nan"))
    assert counts.after(("a",), 60.0) == {"b": 2.0}


def test_counts_survive_a_restart() -> None:
    first, read = LongestContext(), LongestContext()
    learn(first, "ab", "ab")
    read.read_json(first.as_json(0.0), 0.0)
    assert read.probabilities("a", (), 0.0) == first.probabilities("a", (), 0.0)


@pytest.mark.parametrize(
    "stored",
    [
        {"a": 1},
        [["a", {"b": 1.0}]],
        [[["a"], {"b": -1.0}]],
        [[["a"], {"b": float("nan")}]],
        [[["a"], {"b": "2"}]],
        [[[1], {"b": 1.0}]],
    ],
)
def test_damaged_counts_are_refused_whole(stored: object) -> None:
    counts = StepCounts()
    good = [["x"], {"y": 1.0}]
    with pytest.raises(ValueError, match="validation error"):
        counts.read_json([good, *stored] if isinstance(stored, list) else stored, 0.0)
    assert counts.after(("x",), 0.0) == {}


def test_counts_are_bounded() -> None:
    counts = StepCounts(max_contexts=10)
    for index in range(100):
        counts.add((str(index),), "b", 0.0)
    assert len(counts.as_json(0.0)) == 10
    assert counts.after(("99",), 0.0) == {"b": 1.0}


def test_predicted_steps_take_the_inputs_that_such_steps_took() -> None:
    predictor, positions = LongestContext(), InputPositions()
    learn(predictor, *["aab"] * 5)
    for _ in range(5):
        positions.observe("aa", "b", [0, 1], 0.0)
    found = predicted_steps("a", following(predictor), positions, 0.0)
    assert [(step.model, step.inputs) for step in found] == [("a", (0,)), ("b", (0, 1))]
    assert all(0.5 < step.probability <= 1.0 for step in found)


def test_predictions_of_a_loop_stop() -> None:
    predictor = markov_last()
    learn(predictor, "a" * 200)
    found = predicted_steps("a", following(predictor), InputPositions(), 0.0)
    assert len(found) == MAX_STEPS


def test_unlikely_paths_are_not_followed() -> None:
    predictor = markov_last()
    learn(predictor, *(f"a{letter}" for letter in "bcdefghijklmnopqrstuvwxyzABC"))
    assert predicted_steps("a", following(predictor), InputPositions(), 0.0) == []


def test_features_are_bounded_and_equal_for_like_requests() -> None:
    long = request_features({"text": "word " * 10**6 + " ".join(map(str, range(10**5)))})
    assert len(long) < 40
    assert request_features({"a": "Hello World"}) == request_features({"a": "hello world"})
    assert request_features({"image": b"1234", "drafts": 3, "fast": True, "none": None})
