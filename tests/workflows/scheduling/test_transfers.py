"""Costs of transfers by tier, and by what pods have measured."""

from __future__ import annotations

import pytest

from registry.domain.estimates import (
    ModelEstimates,
    TransferTier,
    size_class,
    transfer_measure,
    transfer_tier,
)
from workflows.plan.costs import (
    Device,
    Links,
    ModelCosts,
    TransferCosts,
    fitted,
    measured_links,
    scheduling_problem,
)
from workflows.plan.problem import Step

KIB, MIB = 1024, 1024**2
LINKS = Links(
    sent=TransferCosts(0.0, 1e12),
    shared_memory=TransferCosts(0.001, 1e10),
    raw_bytes=TransferCosts(0.002, 1e9),
)


@pytest.mark.parametrize(
    ("size_bytes", "shares_memory", "tier"),
    [
        pytest.param(64 * KIB, True, None, id="small, sent by the scheduler"),
        pytest.param(64 * KIB + 1, True, TransferTier.RAW_BYTES, id="too small to map"),
        pytest.param(256 * KIB + 1, True, TransferTier.SHARED_MEMORY, id="mapped"),
        pytest.param(256 * KIB + 1, False, TransferTier.RAW_BYTES, id="another node"),
    ],
)
def test_the_tier_of_an_output(
    size_bytes: int, shares_memory: bool, tier: TransferTier | None
) -> None:
    assert transfer_tier(size_bytes, shares_memory=shares_memory) is tier


def test_steps_are_charged_by_the_tier_between_their_devices() -> None:
    devices = [Device("a", "one"), Device("b", "one"), Device("c", "two")]
    models = {"m": ModelCosts(float, 4, 0.0, 1e6)}
    steps = [Step("m", calls=2), Step("m", (0,))]
    problem = scheduling_problem(steps, devices, models, LINKS)
    assert problem.transfer_s(0, 1, 0, 1) == 0.001 + 2e6 / 1e10
    assert problem.transfer_s(0, 1, 0, 2) == 0.002 + 2e6 / 1e9


def test_measured_transfers_replace_what_was_assumed() -> None:
    measured = ModelEstimates()
    for size_bytes, seconds in ((2 * MIB, 0.1), (512 * MIB, 5.1)):
        of_class = size_class(size_bytes)
        measured.add(transfer_measure(TransferTier.RAW_BYTES, of_class), [seconds] * 3)
    links = measured_links(LINKS, measured)
    assert links.shared_memory == LINKS.shared_memory
    assert links.sent == LINKS.sent
    assert links.raw_bytes.bytes_per_s == pytest.approx((512 * MIB - 2 * MIB) / 5.0)
    assert links.raw_bytes.seconds(2 * MIB) == pytest.approx(0.1)


def test_one_measured_size_says_how_much_slower_transfers_are() -> None:
    costs = fitted(LINKS.raw_bytes, [(MIB, 3 * LINKS.raw_bytes.seconds(MIB))])
    assert costs.seconds(MIB) == pytest.approx(3 * LINKS.raw_bytes.seconds(MIB))
    assert costs.seconds(64 * MIB) == pytest.approx(3 * LINKS.raw_bytes.seconds(64 * MIB))


def test_times_that_do_not_grow_with_the_size_are_fixed() -> None:
    costs = fitted(LINKS.raw_bytes, [(1e6, 0.02), (1e8, 0.01)])
    assert costs.seconds(1e9) == 0.01
