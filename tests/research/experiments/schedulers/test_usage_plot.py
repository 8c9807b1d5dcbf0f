"""Spans of time in the plot of models on pods."""

import numpy as np

from research.experiments.schedulers.usage_plot import union


def test_union_of_spans() -> None:
    found = union(np.array([5.0, 0.0, 1.0, 2.5]), np.array([6.0, 2.0, 1.5, 3.0]))
    assert (found.begins.tolist(), found.ends.tolist()) == ([0.0, 2.5, 5.0], [2.0, 3.0, 6.0])
    closed = union(np.array([0.0, 2.5]), np.array([2.0, 3.0]), gap_s=0.5)
    assert (closed.begins.tolist(), closed.ends.tolist()) == ([0.0], [3.0])
