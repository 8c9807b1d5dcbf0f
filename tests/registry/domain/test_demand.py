"""Published arrivals: their form, their age, and what is ignored."""

from math import inf, nan

import orjson
import pytest

from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.demand import (
    MAX_AGE_S,
    MAX_MODELS,
    Band,
    ExpectedRates,
    decode_expected,
    encode_expected,
)


def test_rates_survive_encoding() -> None:
    rates = ExpectedRates({"default/a@1": 0.25, "default/b@2": 1_250.0}, 1_000.5)
    assert decode_expected(encode_expected(rates)) == rates


def test_bands_survive_encoding_and_age_with_the_rates() -> None:
    rates = ExpectedRates({"a": 0.5, "b": 1.0}, 1_000.0, {"a": Band(0.5, 0.25, 1.5)})
    found = decode_expected(encode_expected(rates))
    assert found.bands_at(1_000.0) == {"a": Band(0.5, 0.25, 1.5)}
    assert found.bands_at(1_000.1 + MAX_AGE_S) == {}


@pytest.mark.parametrize(
    "band", [[1.0, 2.0], [1.0, 2.0, nan], [1.0, 2.0, -1.0], [1.0, 2.0, 3.0, 4.0]]
)
def test_a_band_that_is_none_is_ignored(band: list[float]) -> None:
    text = orjson.dumps({"version": 1, "at_s": 1.0, "per_s": {"a": 2}, "bands": {"a": band}})
    found = decode_expected(text.decode())
    assert (found.per_s, found.bands) == ({"a": 2.0}, {})


def test_rates_without_bands_are_read() -> None:
    """An autoscaler of an older release publishes none."""
    assert decode_expected('{"version": 1, "at_s": 1.0, "per_s": {"a": 2}}').bands == {}


@pytest.mark.parametrize(
    ("now_s", "is_used"),
    [
        pytest.param(100.0 + MAX_AGE_S, True, id="young"),
        pytest.param(100.1 + MAX_AGE_S, False, id="old"),
        pytest.param(96.0, True, id="clocks differ a little"),
        pytest.param(40.0, False, id="the clock was set back"),
        pytest.param(nan, False, id="no time"),
    ],
)
def test_rates_age(now_s: float, *, is_used: bool) -> None:
    assert ExpectedRates({"a": 1.0}, 100.0).at(now_s) == ({"a": 1.0} if is_used else {})


@pytest.mark.parametrize("rate", [nan, inf, -inf, -1.0, 1e7, 0.0])
def test_a_rate_that_is_no_rate_is_not_published(rate: float) -> None:
    found = decode_expected(encode_expected(ExpectedRates({"a": rate, "b": 2.0}, 1.0)))
    assert found.per_s == {"b": 2.0}


@pytest.mark.parametrize("rate", [None, "2", True, [1.0], -3, 1e9])
def test_a_rate_that_is_no_rate_is_ignored(rate: object) -> None:
    text = orjson.dumps({"version": 1, "at_s": 1.0, "per_s": {"a": rate, "b": 2}}).decode()
    assert decode_expected(text).per_s == {"b": 2.0}


def test_the_largest_rates_are_published() -> None:
    rates = {f"m{number:04d}": 1.0 + number for number in range(2 * MAX_MODELS)}
    found = decode_expected(encode_expected(ExpectedRates(rates, 1.0))).per_s
    assert min(found.values()) == 1.0 + MAX_MODELS


def test_rates_of_another_version_are_ignored() -> None:
    assert decode_expected('{"version": 2, "what": "else"}') == ExpectedRates()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":1,"at_s":NaN,"per_s":{}}', "null"])
def test_unreadable_rates_leave_the_copy_as_it_was(text: str) -> None:
    state = ClusterState()
    applier = ChangeApplier(state)
    applier.apply(1, [["expected", encode_expected(ExpectedRates({"a": 1.0}, 5.0))]])
    applier.apply(2, [["expected", text]])
    assert state.expected_rates == ExpectedRates({"a": 1.0}, 5.0)
    assert applier.unreadable_total == 1


def test_an_older_change_does_not_replace_a_newer_one() -> None:
    state = ClusterState()
    applier = ChangeApplier(state)
    for version, rate in ((3, 3.0), (2, 2.0)):
        applier.apply(version, [["expected", encode_expected(ExpectedRates({"a": rate}, 5.0))]])
    assert state.expected_rates.per_s == {"a": 3.0}
