"""Two pods on one device: the table and the marks."""

from collections.abc import Callable, Iterator

from benchmarks.gpu.sharing import SHARES, TURNS, WAYS, Sharing, WayBurst
from benchmarks.marks import Mark
from benchmarks.quantiles import spread


def sharing_summary(measured: Sharing) -> str:
    """A Markdown table, and what could not be measured."""
    rows = [
        "| way | inferences/s of all | p50, ms | p99 of the slower pod, ms | multiprocessors |",
        "|---|---|---|---|---|",
        *(_row(measured, way) for way in WAYS if _bursts(measured, way)),
    ]
    rows += [f"\nNot measured: {way}: {why}" for way, why in measured.problems.items()]
    return "\n".join(rows)


def _row(measured: Sharing, way: str) -> str:
    rates = spread([_rate(burst) for burst in _bursts(measured, way)])
    p50, p99 = (_median_ms(measured, way, of) for of in (_p50_s, _p99_s))
    return (
        f"| {way} | {rates.median:.0f} ({rates.lowest:.0f} to {rates.highest:.0f}) |"
        f" {p50:.2f} | {p99:.2f} | {measured.seen[way]} |"
    )


def sharing_marks(measured: Sharing) -> Iterator[Mark]:
    """Shares beside time sharing."""
    promises = (
        "two pods with shares: inferences/s at least those of time sharing",
        "two pods with shares: p99 at most that of time sharing",
    )
    shares, turns = _bursts(measured, SHARES), _bursts(measured, TURNS)
    if not (shares and turns):
        why = "; ".join(f"{way}: {problem}" for way, problem in measured.problems.items())
        for promise in promises:
            yield Mark(promise, f"not measured ({why})", is_reached=False)
        return
    rates = [spread([_rate(burst) for burst in of]).median for of in (shares, turns)]
    yield Mark(promises[0], f"{rates[0]:.0f} against {rates[1]:.0f}", rates[0] >= rates[1])
    p99_ms = [_median_ms(measured, way, _p99_s) for way in (SHARES, TURNS)]
    yield Mark(promises[1], f"{p99_ms[0]:.2f} against {p99_ms[1]:.2f} ms", p99_ms[0] <= p99_ms[1])


def _bursts(measured: Sharing, way: str) -> list[WayBurst]:
    return [burst for burst in measured.bursts if burst.way == way]


def _rate(burst: WayBurst) -> float:
    return sum(pod.inferences / pod.seconds for pod in burst.pods)


def _p50_s(burst: WayBurst) -> float:
    return max(pod.p50_s for pod in burst.pods)


def _p99_s(burst: WayBurst) -> float:
    return max(pod.p99_s for pod in burst.pods)


def _median_ms(measured: Sharing, way: str, of: Callable[[WayBurst], float]) -> float:
    return 1000 * spread([of(burst) for burst in _bursts(measured, way)]).median
