"""The places of steps that schedulers of workflows have put at the pod, beside its slots."""

from __future__ import annotations

from collections import Counter
from typing import Final

from runtime.errors import StepQueueFull
from runtime.metrics import STEPS_QUEUED

PLACES: Final = 64
"""Steps that a pod takes beside its slots, also while their inputs are fetched."""


class StepQueue:
    """Steps that schedulers have placed here, beside the slots, from arrival to response.

    At most `length`, of one namespace three quarters. So one that lacks inputs holds no slot.
    Belongs to the event loop.
    """

    def __init__(self, length: int = PLACES) -> None:
        self._length = length
        self._by_namespace: Counter[str] = Counter()

    def check(self, namespace: str) -> None:
        """Raises StepQueueFull where a step of the namespace finds no place."""
        if self._by_namespace.total() >= self._length:
            raise StepQueueFull(f"the pod's step queue is full: it has {self._length} steps")
        most = self._length - self._length // 4
        if self._by_namespace[namespace] >= most:
            raise StepQueueFull(
                f"namespace {namespace} has {most} of {self._length} steps in the pod's step "
                "queue; the others are for other namespaces"
            )

    def add(self, namespace: str, steps: int) -> None:
        """Count steps that arrive, or, below 0, that are over."""
        self._by_namespace[namespace] += steps
        if not self._by_namespace[namespace]:
            del self._by_namespace[namespace]
        STEPS_QUEUED.set(self._by_namespace.total())
