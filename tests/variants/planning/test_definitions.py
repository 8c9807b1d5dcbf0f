"""Hand-worked values of the definitions; Wolfrath et al. 2025, sections 3 to 5."""

import math

import numpy as np
import pytest

from registry.domain.application import Penalty
from variants.planning.window import (
    accuracy_by_class_mix,
    class_probabilities,
    penalty,
    priority,
    profiled_accuracy,
    recalls,
)

CONFUSION = [[6, 2], [1, 1]]


@pytest.mark.parametrize(
    ("kind", "completion_s", "expected"),
    [
        pytest.param(Penalty.STEP, 0.2, 0.0, id="step: on the deadline"),
        pytest.param(Penalty.STEP, 0.200001, 1.0, id="step: just late"),
        pytest.param(Penalty.LINEAR, 0.1, 0.0, id="linear: early"),
        pytest.param(Penalty.LINEAR, 0.25, 0.25, id="linear: x = 1/4"),
        pytest.param(Penalty.LINEAR, 0.4, 1.0, id="linear: x = 1"),
        pytest.param(Penalty.LINEAR, 9.0, 1.0, id="linear: at most 1"),
        pytest.param(Penalty.SIGMOID, 0.2, 0.0, id="sigmoid: on the deadline"),
        pytest.param(Penalty.SIGMOID, 0.25, 1 / 28, id="sigmoid: x = 1/4, 1 / (1 + 27)"),
        pytest.param(Penalty.SIGMOID, 0.3, 0.5, id="sigmoid: x = 1/2"),
        pytest.param(Penalty.SIGMOID, 0.35, 27 / 28, id="sigmoid: x = 3/4"),
        pytest.param(Penalty.SIGMOID, 0.4, 1.0, id="sigmoid: x = 1"),
        pytest.param(Penalty.SIGMOID, 5.0, 1.0, id="sigmoid: at most 1"),
        pytest.param(Penalty.NONE, 5.0, 0.0, id="none"),
    ],
)
def test_penalty_of_a_deadline_of_200_ms(
    kind: Penalty, completion_s: float, expected: float
) -> None:
    assert float(penalty(kind, 0.2, completion_s)) == pytest.approx(expected, abs=1e-9)


def test_penalties_never_fall_with_time() -> None:
    completions = np.linspace(0.0, 1.0, 401)
    for kind in Penalty:
        values = penalty(kind, 0.15, completions)
        assert (np.diff(values) >= 0).all()
        assert values.min() >= 0
        assert values.max() <= 1


def test_accuracies_of_a_confusion_matrix() -> None:
    assert profiled_accuracy(CONFUSION) == pytest.approx(0.7, abs=1e-9)
    assert recalls(CONFUSION) == pytest.approx([0.75, 0.5], abs=1e-9)
    # 0.4 * 0.75 + 0.6 * 0.5
    mix = accuracy_by_class_mix(recalls(CONFUSION), [0.4, 0.6])
    assert float(mix) == pytest.approx(0.6, abs=1e-9)
    # The mix of the profile itself gives the profiled accuracy (eq. 8).
    assert float(accuracy_by_class_mix(recalls(CONFUSION), [0.8, 0.2])) == pytest.approx(0.7)


def test_a_class_without_examples_is_named() -> None:
    with pytest.raises(ValueError, match="rows without one: 1"):
        recalls([[3, 1], [0, 0]])


def test_class_probabilities_of_the_papers_example() -> None:
    # Two neighbours without a fall, three with: (0.5 + 2) / 6 and (0.5 + 3) / 6.
    found = class_probabilities([2, 3])
    assert found == pytest.approx([2.5 / 6, 3.5 / 6], abs=1e-9)


def test_priorities() -> None:
    # Population variance of 0.6, 0.8 and 1.0: 0.08 / 3.
    expected = (1 + 0.08 / 3) * math.exp(-0.1)
    assert float(priority([0.6, 0.8, 1.0], 0.1)) == pytest.approx(expected, abs=1e-9)
    assert float(priority([0.9], -0.5)) == pytest.approx(math.exp(0.5), abs=1e-9)
