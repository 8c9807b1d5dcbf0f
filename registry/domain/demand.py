"""Demand for models as gateways report it: arrivals counted per window, and queued requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.model import ModelName


class CountWindow(StrEnum):
    """Lengths of the windows in which arrivals are counted."""

    SECOND = "second"
    MINUTE = "minute"
    TEN_MINUTES = "ten"


WINDOW_S: Mapping[CountWindow, int] = {
    CountWindow.SECOND: 1,
    CountWindow.MINUTE: 60,
    CountWindow.TEN_MINUTES: 600,
}


@dataclass(frozen=True, slots=True)
class ArrivalCount:
    """Requests of one model that arrived in the window that begins at `start_s`, registry time."""

    model: ModelName
    start_s: int
    count: int


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Requests of one model in the queues of gateways."""

    requests: int = 0
    starved: int = 0
    """Requests past 60 % of their time to the deadline (Blinowski et al. 2024, 4.2.3)."""
    oldest_s: float = inf
    """Registry time at which the oldest one arrived."""


@dataclass(frozen=True, slots=True)
class ArrivalHint:
    """Arrivals of a model that somebody announces, such as the next steps of workflows."""

    model: ModelName
    probability: float
    """That at least one comes."""
    until_s: float
    """Registry time by which they come."""
    count: float = 1.0
    """Expected number if any comes; at least 1."""
