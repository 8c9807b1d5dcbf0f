"""What the burst was like on a real platform. Values only. Seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveBurst:
    """One burst at a pool without pods."""

    is_known: bool
    """Whether the models were served before, so that their times were measured."""
    took_s: tuple[float, ...]
    """From the burst to each answer, rising."""
    loads: int
    """Copies of models that came to pods."""
    pods: int
    """That were woken."""
    first_pod_s: float
    """From the burst until the first pod took requests."""
