"""Figures of a campaign, as Markdown for `docs/reliability.md`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.quantiles import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.campaign import Campaign


_NUMBERS: Final = re.compile(r"\d+(\.\d+)?")


def markdown(campaign: Campaign) -> str:
    outcomes = campaign.load.outcomes()
    lines = [
        f"Seed {campaign.seed}, {len(campaign.faults)} faults, {campaign.load.rate:g} requests/s,"
        f" {campaign.platform.pods} pods, {campaign.platform.models} models,"
        f" {campaign.checks} checks for leaks, {len(campaign.violations)} violations.",
        "",
        "| fault | number | median s | p95 s | longest s |",
        "|---|---|---|---|---|",
    ]
    times: dict[str, list[float]] = defaultdict(list)
    for each in campaign.faults:
        times[each.kind].append(each.healed_s - each.over_s)
    for kind, values in sorted(times.items()):
        lines.append(f"| {kind} | {len(values)} | {_row(values)} |")
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
    return " | ".join(
        f"{each:.1f}" for each in (median(values), quantile(values, 0.95), max(values))
    )


def _ordered(outcomes: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(outcomes.items(), key=lambda each: (-each[1], each[0]))
