"""Batches, tokens and swaps on one device: their measurement, table and marks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.batches import Batches, measure_batches
from benchmarks.gpu.probes import Rate, measure_copy_sizes, measure_readers, rate_table
from benchmarks.gpu.subject import Subject
from benchmarks.gpu.swaps import LLAMA, TINY, Swaps, make_llama, measure_swaps
from benchmarks.gpu.tokens import Tokens, measure_tokens
from benchmarks.marks import Mark
from benchmarks.quantiles import spread
from benchmarks.tiers.models import folder_of
from runtime.device.staged_memory import StagedMemory

BATCH_GAIN: Final = 5.0
FIRST_TOKEN_S: Final = 0.40
"""Of a model of 15 GB."""
SWAP_S: Final = 0.22
"""Of a model of 7 GB."""
STALL_S: Final = 5e-3
"""Of the event loop beside batches."""
PAUSE_S: Final = 0.3e-3
"""Between two steps that generate tokens."""


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """How much is measured, and with which models."""

    classifier: str = "bert-base"
    clients: int = 64
    sequences: int = 16
    new_tokens: int = 128
    repeats: int = 5
    seconds: float = 3.0
    llama: Mapping[str, Any] = field(default_factory=lambda: LLAMA)
    large_bytes: int = 15 * 10**9
    swapped_bytes: int = 7 * 10**9
    """Of the model that generates tokens, too: 3.5 billion parameters."""
    swaps: int = 10
    probe_bytes: int = 4 << 30
    readers: Sequence[int] = (1, 2, 4, 8, 12, 16)


DRY: Final = ServingPlan(
    "tiny-bert",
    clients=4,
    sequences=2,
    new_tokens=8,
    repeats=1,
    seconds=0.1,
    llama=TINY,
    large_bytes=2_000_000,
    swapped_bytes=1_000_000,
    swaps=2,
    probe_bytes=1 << 22,
    readers=(1, 2),
)


@dataclass(frozen=True, slots=True)
class ServingMeasured:
    readers: list[Rate]
    copies: list[Rate]
    batches: Batches
    tokens: Tokens
    large: Swaps
    swapped: Swaps


def measure_serving_marks(subject: Subject, plan: ServingPlan) -> ServingMeasured:
    """Probes of copies, then batches, tokens, and large models from tier `host`."""
    memory = StagedMemory(subject.engine)
    try:
        return ServingMeasured(
            measure_readers(subject, plan.probe_bytes, plan.readers),
            measure_copy_sizes(subject, plan.probe_bytes),
            measure_batches(
                folder_of(plan.classifier),
                memory,
                clients=plan.clients,
                repeats=plan.repeats,
                seconds=plan.seconds,
            ),
            measure_tokens(
                _llama(plan, plan.swapped_bytes),
                memory,
                sequences=plan.sequences,
                new_tokens=plan.new_tokens,
                repeats=plan.repeats,
            ),
            measure_swaps(_llama(plan, plan.large_bytes), memory, swaps=plan.swaps),
            measure_swaps(_llama(plan, plan.swapped_bytes), memory, swaps=plan.swaps),
        )
    finally:
        memory.close()


def _llama(plan: ServingPlan, size_bytes: int) -> Path:
    return make_llama(dict(plan.llama), size_bytes, f"llama-{size_bytes}")


def serving_summary(measured: ServingMeasured) -> str:
    """Markdown tables."""
    batches, tokens = measured.batches, measured.tokens
    rows = [
        "| what | median | lowest to highest |",
        "|---|---|---|",
        _row("inferences/s, eager one by one", batches.one_by_one),
        _row(f"inferences/s, batches of {batches.clients} clients", batches.batched),
        _row(
            "longest stall of the event loop, ms", [each * 1e3 for each in batches.stalls_s], ".1f"
        ),
        _row(f"tokens/s, {tokens.sequences} sequences", tokens.ours),
        _row("tokens/s, transformers' continuous batching", tokens.transformers),
        _row("pause between two steps, ms", [each * 1e3 for each in tokens.pauses_s], ".3f"),
        *(
            _row(f"host to first token, {each.size_bytes / 1e9:.1f} GB, s", each.seconds, ".3f")
            for each in (measured.large, measured.swapped)
        ),
    ]
    probes = rate_table([*measured.readers, *measured.copies])
    return "\n".join(rows) + f"\n\n{probes}"


def _row(what: str, values: Sequence[float], form: str = ".0f") -> str:
    of = spread(list(values))
    return f"| {what} | {of.median:{form}} | {of.lowest:{form}} to {of.highest:{form}} |"


def serving_marks(measured: ServingMeasured) -> Iterator[Mark]:
    """What the figures are held against."""
    batches, tokens = measured.batches, measured.tokens
    gain = spread(batches.batched).median / spread(batches.one_by_one).median
    yield Mark(
        f"{batches.clients} clients at least {BATCH_GAIN:g} times eager one by one",
        f"{gain:.1f} times",
        gain >= BATCH_GAIN,
    )
    stall_s = spread(batches.stalls_s).median
    yield Mark(
        f"the event loop stands still for at most {STALL_S * 1e3:g} ms beside batches",
        f"{stall_s * 1e3:.1f} ms",
        stall_s <= STALL_S,
    )
    ours, theirs = spread(tokens.ours).median, spread(tokens.transformers).median
    yield Mark(
        f"tokens/s of {tokens.sequences} sequences at least transformers' own",
        f"{ours:.0f} against {theirs:.0f}",
        ours >= theirs,
    )
    pause_s = spread(tokens.pauses_s).median
    yield Mark(
        f"pause between steps of {tokens.sequences} sequences at most {PAUSE_S * 1e3:g} ms",
        f"{pause_s * 1e3:.3f} ms",
        pause_s <= PAUSE_S,
    )
    for swaps, limit_s in ((measured.large, FIRST_TOKEN_S), (measured.swapped, SWAP_S)):
        p50_s = spread(swaps.seconds).median
        yield Mark(
            f"host to first token of {swaps.size_bytes / 1e9:.1f} GB within {limit_s:g} s",
            f"{p50_s:.3f} s",
            p50_s <= limit_s,
        )
