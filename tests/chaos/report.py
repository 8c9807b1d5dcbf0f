"""Figures of a campaign, as Markdown for `docs/reliability.md`."""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final

from benchmarks.quantiles import quantile
from tests.chaos.campaign import Campaign
from tests.chaos.faults import KINDS

_NUMBERS: Final = re.compile(r"\d+(\.\d+)?")


def markdown(campaign: Campaign) -> str:
    outcomes = campaign.load.outcomes()
    by_kind: dict[str, tuple[list[float], list[float]]] = {kind.name: ([], []) for kind in KINDS}
    for each in campaign.faults:
        by_kind[each.kind][each.is_alone].append(each.heal_s)
    lines = [
        f"Seed {campaign.seed}, {len(campaign.faults)} faults, {campaign.load.rate:g} requests/s,"
        f" {campaign.platform.pods} pods, {campaign.platform.models} models,"
        f" {campaign.checks} checks for leaks, {len(campaign.violations)} violations;"
        f" {campaign.not_caused.total()} more faults met nothing to act on.",
        "",
        "| fault | number | alone | median s | p95 s | in company, median s | p95 s |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, (others, alone) in sorted(by_kind.items()):
        number = len(others) + len(alone)
        lines.append(f"| {kind} | {number} | {len(alone)} | {_row(alone)} | {_row(others)} |")
    total = max(1, sum(outcomes.values()))
    lines += ["", "| outcome of a request | number | share |", "|---|---|---|"]
    lines += [f"| {key} | {count:,} | {count / total:.2%} |" for key, count in _ordered(outcomes)]
    lines += ["", "| reason of an error | number |", "|---|---|"]
    reasons = Counter(
        f"{each.status} {_NUMBERS.sub('N', each.detail)[:120]}"
        for each in campaign.load.requests
        if each.detail
    )
    lines += [f"| {reason} | {count:,} |" for reason, count in reasons.most_common(20)]
    return "\n".join(lines)


def _row(values: Sequence[float]) -> str:
    """Median and 95th percentile."""
    if not values:
        return "- | -"
    return f"{median(values):.1f} | {quantile(values, 0.95):.1f}"


def _ordered(outcomes: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(outcomes.items(), key=lambda each: (-each[1], each[0]))
