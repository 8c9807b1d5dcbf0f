"""The table of cold starts, and the marks they are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.marks import Mark
from benchmarks.quantiles import Spread, spread
from benchmarks.tiers.contestants import DD, Start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.tiers.measure import Loading

HOST_S: Final = 0.1
HOST_MOST_BYTES: Final = 1_000_000_000
DD_SHARE: Final = 0.75


def summary(results: Sequence[Loading]) -> str:
    """A Markdown table: medians over the repeats, with their range."""
    lines = [
        "| model | from | contestant | usable after ms | lowest to highest |"
        " first inference ms | GB/s |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, Start, str], list[Loading]] = {}
    for each in results:
        groups.setdefault((each.model, each.start, each.contestant), []).append(each)
    for (model, start, contestant), rows in sorted(groups.items(), key=lambda item: item[0][:2]):
        load = spread([row.load_s * 1000 for row in rows])
        first = spread([row.first_inference_s * 1000 for row in rows])
        lines.append(
            f"| {model} ({rows[0].size_bytes / 1e6:.0f} MB) | {start} | {contestant} |"
            f" {load.median:.1f} | {load.lowest:.1f} to {load.highest:.1f} |"
            f" {first.median:.1f} | {rows[0].size_bytes / load.median / 1e6:.1f} |"
        )
    return "\n".join(lines)


def marks(results: Sequence[Loading]) -> Iterator[Mark]:
    """What the loads promised, model by model."""
    for model in dict.fromkeys(each.model for each in results):
        rows = [each for each in results if each.model == model]
        yield from _host(model, rows)
        yield from _disk(model, rows)
        yield from _s3(model, rows)


def _host(model: str, rows: Sequence[Loading]) -> Iterator[Mark]:
    took = _ours(rows, Start.HOST)
    if took is not None and rows[0].size_bytes <= HOST_MOST_BYTES:
        promise = f"{model} from host (mapped) in less than {HOST_S * 1000:.0f} ms"
        yield Mark(promise, _ms(took), took.median < HOST_S)


def _disk(model: str, rows: Sequence[Loading]) -> Iterator[Mark]:
    took, read = _ours(rows, Start.COLD), _took(rows, Start.COLD, DD)
    if took is not None and read is not None:
        share = read.median / took.median
        promise = f"{model} from disk at {DD_SHARE:.0%} of dd's rate"
        seen = f"{share:.0%} ({_ms(took)} against {_ms(read)})"
        yield Mark(promise, seen, share >= DD_SHARE)


def _s3(model: str, rows: Sequence[Loading]) -> Iterator[Mark]:
    took = _ours(rows, Start.S3)
    peers = {each.contestant for each in rows if each.start is Start.S3 and not each.is_ours}
    for peer in sorted(peers):
        other = _took(rows, Start.S3, peer)
        if took is not None and other is not None:
            seen = f"{_ms(took)} against {_ms(other)}, {other.median / took.median:.2f} times"
            yield Mark(f"{model} from S3 ahead of {peer}", seen, took.median < other.median)


def _ours(rows: Sequence[Loading], start: Start) -> Spread | None:
    return _took(rows, start, "Pilotlight")


def _took(rows: Sequence[Loading], start: Start, contestant: str) -> Spread | None:
    taken = [each.load_s for each in rows if (each.start, each.contestant) == (start, contestant)]
    return spread(taken) if taken else None


def _ms(took: Spread) -> str:
    return f"{took.median * 1000:.0f} ms"
