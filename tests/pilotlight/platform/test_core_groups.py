"""Shares of a group of cores."""

from __future__ import annotations

import pytest

from pilotlight.platform.core_groups import cores_of_share

CORES = (4, 5, 6, 7)


@pytest.mark.parametrize(
    ("share_pct", "taken", "found"),
    [
        pytest.param(None, (4, 5), [4, 5, 6, 7], id="no-share-is-all"),
        pytest.param(50.0, (), [4, 5], id="half"),
        pytest.param(50.0, (4, 5), [6, 7], id="the-other-half"),
        pytest.param(30.0, (4, 5, 6), [4, 7], id="rounded-up-on-the-least-taken"),
        pytest.param(1.0, (4, 4, 5, 6, 7), [5], id="at-least-one"),
        pytest.param(100.0, (4,), [4, 5, 6, 7], id="whole"),
    ],
)
def test_a_share_has_the_cores_that_fewest_have(
    share_pct: float | None, taken: tuple[int, ...], found: list[int]
) -> None:
    assert list(cores_of_share(CORES, share_pct, taken)) == found
