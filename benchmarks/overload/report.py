"""Tables and targets of the benchmark under overload."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from benchmarks.marks import Mark
from benchmarks.overload.measure import DEADLINE_MS, MULTIPLES, Cell, Measured, Neighbours

MIN_GOODPUT: Final = 0.9
MAX_GROWTH: Final = 1.2


def summary(measured: Measured) -> str:
    """Medians over the repeats, in Markdown."""
    lines = [
        "| times capacity | deadlines | capacity/s | goodput/s | share (lowest)"
        " | share by the pod's CPU time (lowest) | gateway's CPU ms per request"
        " | cores of pod, gateway, generator | p50 ms | p99 ms"
        " | late | sent late, p99 ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for has_deadline in (False, True):
        for multiple in MULTIPLES:
            cells = _cells(measured, multiple, has_deadline=has_deadline)
            if not cells:
                continue
            lines.append(
                f"| {multiple} | {_deadline(has_deadline=has_deadline)} |"
                f" {median(each.capacity for each in cells):.1f} |"
                f" {median(each.goodput for each in cells):.1f} |"
                f" {median(each.share for each in cells):.2f}"
                f" ({min(each.share for each in cells):.2f}) |"
                f" {median(each.cpu_share for each in cells):.2f}"
                f" ({min(each.cpu_share for each in cells):.2f}) |"
                f" {median(each.gateway_ms for each in cells):.2f} |"
                f" {median(each.cores.pod for each in cells):.2f},"
                f" {median(each.cores.gateway for each in cells):.2f},"
                f" {median(each.cores.generator for each in cells):.2f} |"
                f" {median(each.p50_s for each in cells) * 1000:.0f} |"
                f" {median(each.p99_s for each in cells) * 1000:.0f} |"
                f" {sum(each.late for each in cells)} |"
                f" {median(each.sent_late_s for each in cells) * 1000:.0f} |"
            )
    lines += [
        "",
        "| other tenants | deadlines | p50 ms | p99 ms (per repeat) | served |",
        "|---|---|---|---|---|",
    ]
    for has_deadline in (False, True):
        for is_beside_greedy in (False, True):
            found = _neighbours(
                measured, has_deadline=has_deadline, is_beside_greedy=is_beside_greedy
            )
            if not found:
                continue
            each_p99 = ", ".join(f"{each.p99_s * 1000:.0f}" for each in found)
            lines.append(
                f"| {'beside a greedy one' if is_beside_greedy else 'alone'} |"
                f" {_deadline(has_deadline=has_deadline)} |"
                f" {median(each.p50_s for each in found) * 1000:.0f} |"
                f" {median(each.p99_s for each in found) * 1000:.0f} ({each_p99}) |"
                f" {sum(each.served for each in found)} of {sum(each.due for each in found)} |"
            )
    return "\n".join(lines)


def _deadline(*, has_deadline: bool) -> str:
    return f"{DEADLINE_MS} ms" if has_deadline else "none"


def _cells(measured: Measured, multiple: int, *, has_deadline: bool) -> list[Cell]:
    return [
        each
        for each in measured.cells
        if (each.multiple, each.has_deadline) == (multiple, has_deadline)
    ]


def _neighbours(
    measured: Measured, *, has_deadline: bool, is_beside_greedy: bool
) -> Sequence[Neighbours]:
    return [
        each
        for each in measured.neighbours
        if (each.has_deadline, each.is_beside_greedy) == (has_deadline, is_beside_greedy)
    ]


def marks(measured: Measured) -> Iterator[Mark]:
    for has_deadline in (False, True):
        shares = [
            median(each.share for each in cells)
            for multiple in MULTIPLES
            if (cells := _cells(measured, multiple, has_deadline=has_deadline))
        ]
        name = f"deadlines {_deadline(has_deadline=has_deadline)}"
        if shares:
            promise = f"{name}: goodput {MIN_GOODPUT:.0%} of capacity"
            yield Mark(promise, f"at least {min(shares):.0%}", min(shares) >= MIN_GOODPUT)
        alone, beside = (
            [
                each.p99_s
                for each in _neighbours(measured, has_deadline=has_deadline, is_beside_greedy=flag)
            ]
            for flag in (False, True)
        )
        if alone and beside:
            growth = median(beside) / median(alone)
            promise = f"{name}: other tenants' p99 within {MAX_GROWTH - 1:.0%}"
            yield Mark(promise, f"{growth:.2f} times", growth <= MAX_GROWTH)
