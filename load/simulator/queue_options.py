"""What else than the live gateway's way of queueing a run may have, to compare schedulers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """How the gateway of a run queues. The defaults are the live gateway's."""

    serves_late: bool = False
    """Deadlines are wishes: who is late is answered all the same, as in Blinowski et al. 2024."""
    by_deadline: bool = True
    """The earliest deadline first; else by arrival."""
    plans_first: bool = False
    """While requests wait the autoscaler is asked when something changed, before they are placed,
    so that it sees machines that have just become idle; else by the clock."""
    may_load: bool = True
    """Requests begin loads; else only the autoscaler does, and they wait."""
