"""What serving an application's variants costs, as pods have measured it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pilotlight.quantities import format_bytes
from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelSpec


@dataclass(frozen=True, slots=True)
class VariantCosts:
    """None: not measured yet."""

    latency_s: float | None
    """Of an inference with its preparation, over all kinds of accelerators."""
    load_s: float | None
    """From the fastest tier that it was loaded from."""
    memory_bytes: int | None
    """On the device."""

    def texts(self) -> tuple[str, str, str]:
        return (
            "-" if self.latency_s is None else f"{self.latency_s * 1000:.2f} ms",
            "-" if self.load_s is None else f"{self.load_s * 1000:.0f} ms",
            "-" if self.memory_bytes is None else format_bytes(self.memory_bytes),
        )


def variant_costs(state: ClusterState, variants: Sequence[ModelSpec]) -> dict[str, VariantCosts]:
    """By model key."""
    return {spec.key: _costs(state, spec) for spec in variants}


def _costs(state: ClusterState, spec: ModelSpec) -> VariantCosts:
    measured = state.measured(spec.key)
    stages = measured.stages
    loads = [measured.get(f"load:{tier}") for tier in (Tier.HOST, Tier.DISK, Tier.REMOTE)]
    load = next((each for each in loads if each is not None), None)
    return VariantCosts(
        stages.hold_s if stages.is_measured else None,
        None if load is None else load.seconds,
        state.residency.device_bytes.get(spec.key),
    )
