"""Applications of a simulated cluster as values; `application_file` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.application import ApplicationSpec


@dataclass(frozen=True, slots=True)
class ApplicationExamples:
    """What requests carry; a list has an entry per example."""

    labels: list[int]
    predicted: Mapping[str, list[int]] = field(default_factory=dict)
    """By variant."""
    evidence: list[tuple[float, ...]] = field(default_factory=list)
    """What the look sees; empty: there is none."""


@dataclass(frozen=True, slots=True)
class ApplicationPlan:
    spec: ApplicationSpec
    confusions: Mapping[str, tuple[tuple[int, ...], ...]]
    """By variant; rows are true classes."""
    examples: ApplicationExamples | None = None
    look_accuracy: float | None = None
    """Profiled, of the look at the data."""
