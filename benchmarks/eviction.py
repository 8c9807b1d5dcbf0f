"""Which rule of eviction loads less: a replay of fixed traces through the runtime's own policies.

Eight models and memory for half of them, 400 requests, one at a time; uniform, Zipf and cyclic
access, once with models of one size and once of sizes from MiniLM to T5-base. No clock, no
device: loads and the seconds they would take are counted. Simulated.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.quantiles import spread
from runtime.tiers.eviction import POLICIES, Candidate, EvictionPolicy

REQUESTS: Final = 400
SEEDS: Final = 20
_MB: Final = 1_000_000
_FIXED_S: Final = 0.02
_BYTES_PER_S: Final = 1e9
"""A load from a warm disk, as `python -m benchmarks tiers` measures it."""
SIZES: Final[Mapping[str, tuple[int, ...]]] = {
    "one size": (250 * _MB,) * 8,
    "mixed": (90 * _MB,) * 2 + (240 * _MB,) * 3 + (890 * _MB,) * 3,
}
ACCESS: Final[Mapping[str, Callable[[random.Random, int], list[int]]]] = {
    "uniform": lambda rng, count: rng.choices(range(count), k=REQUESTS),
    "zipf 1.0": lambda rng, count: _zipf(rng, count),
    "cyclic": lambda _rng, count: [number % count for number in range(REQUESTS)],
    "shifting zipf": lambda rng, count: _shifting(rng, count),
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """One trace through one rule."""

    sizes: str
    access: str
    policy: str
    seed: int
    loads: int
    load_s: float
    """Time spent loading, all loads together."""


def measure(*, seed: int, repeats: int = SEEDS) -> list[Replayed]:
    """All traces through all rules, and Belady's optimum where models have one size."""
    results = []
    for (size_name, sizes), (access, draw), number in itertools.product(
        SIZES.items(), ACCESS.items(), range(repeats)
    ):
        rng = random.Random(f"{seed}:{size_name}:{access}:{number}")
        ranks = rng.sample(range(len(sizes)), len(sizes))  # no model is popular for its size
        trace = [ranks[rank] for rank in draw(rng, len(sizes))]
        budget = sum(sizes) // 2
        for name, policy in POLICIES.items():
            loads, load_s = replay(trace, sizes, budget, policy)
            results.append(Replayed(size_name, access, name, number, loads, load_s))
        if len(set(sizes)) == 1:
            loads = belady(trace, len(sizes) // 2)
            load_s = loads * load_seconds(sizes[0])
            results.append(Replayed(size_name, access, "optimum (Belady)", number, loads, load_s))
    return results


def replay(
    trace: Sequence[int], sizes: Sequence[int], budget: int, policy: EvictionPolicy
) -> tuple[int, float]:
    """Loads, and the seconds they take together."""
    held: dict[int, Candidate] = {}
    clock, loads, load_s = 0.0, 0, 0.0
    for now, model in enumerate(trace):
        cost_s = load_seconds(sizes[model])
        if model not in held:
            loads, load_s = loads + 1, load_s + cost_s
            used = sum(each.memory_bytes for each in held.values())
            victims = policy(list(held.values()), used + sizes[model] - budget, clock)
            assert victims is not None
            clock = victims.clock
            for key in victims.keys:
                del held[int(key)]
        uses = held[model].uses + 1 if model in held else 1
        held[model] = Candidate(
            str(model), sizes[model], now, uses=uses, reload_s=cost_s, clock=clock
        )
    return loads, load_s


def belady(trace: Sequence[int], places: int) -> int:
    """Loads of the rule that knows the future: the one that is wanted last leaves."""
    held: set[int] = set()
    loads = 0
    for now, model in enumerate(trace):
        if model in held:
            continue
        loads += 1
        if len(held) == places:
            later = trace[now:]
            held.remove(
                max(held, key=lambda each: later.index(each) if each in later else len(trace))
            )
        held.add(model)
    return loads


def load_seconds(size_bytes: int) -> float:
    """What a load of this size is taken to cost."""
    return _FIXED_S + size_bytes / _BYTES_PER_S


def _zipf(rng: random.Random, count: int) -> list[int]:
    weights = [1 / (rank + 1) for rank in range(count)]
    return rng.choices(range(count), weights, k=REQUESTS)


def _shifting(rng: random.Random, count: int) -> list[int]:
    """Zipf whose favourites change four times: what was popular must be let go again."""
    return [
        (rank + 2 * (4 * number // REQUESTS)) % count
        for number, rank in enumerate(_zipf(rng, count))
    ]


def summary(results: Sequence[Replayed]) -> str:
    """A Markdown table: medians over the seeds."""
    lines = [
        "| sizes | access | rule | loads | lowest to highest | seconds of loading |",
        "|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, str], list[Replayed]] = {}
    for each in results:
        groups.setdefault((each.sizes, each.access, each.policy), []).append(each)
    for (sizes, access, policy), rows in groups.items():
        loads = spread([row.loads for row in rows])
        seconds = spread([row.load_s for row in rows])
        lines.append(
            f"| {sizes} | {access} | {policy} | {loads.median:.0f} |"
            f" {loads.lowest:.0f} to {loads.highest:.0f} | {seconds.median:.1f} |"
        )
    return "\n".join(lines)
