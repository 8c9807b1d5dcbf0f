"""When a run's rest is planned anew.

The paper plans anew at an unpredicted step only (section 5.3). But a plan fixes the devices of
later steps before their queues are known: where all models are loaded everywhere, runs that keep to
it end about 10 % later than runs that plan anew. So older plans are made anew as well.
"""

from __future__ import annotations

from typing import Final

KEEPS_S: Final = 0.05
"""Queues hardly change in that time, and calls made together are planned once."""


def is_outdated(is_foreseen: bool, age_s: float) -> bool:
    """Whether calls that were, or were not, foreseen by a plan of this age need another."""
    return not is_foreseen or age_s > KEEPS_S
