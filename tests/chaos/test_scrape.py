"""Checks of metrics that are not there must fail."""

from __future__ import annotations

import pytest

from tests.chaos.scrape import MetricMissing, present_metric


def test_a_value_is_read() -> None:
    assert present_metric('a_b{c="d"} 2.0\na_b{c="e"} 1.0\n', "a_b") == 3.0


def test_a_metric_that_was_renamed_is_no_zero() -> None:
    with pytest.raises(MetricMissing):
        present_metric("a_b_total 0.0\n", "a_b")
