"""A load, and what its lifecycle needs of weights and registry. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from registry.domain.model import LoadFailure, ModelSpec, Tier
from runtime.storage.load_ticket import LoadProgress, LoadTicket

if TYPE_CHECKING:
    from registry.domain.reservation import LoadClaim

NEARLY_DONE_SHARE: Final = 0.8
"""Share of a download's bytes from which on it is always finished."""


def should_continue(progress: LoadProgress, *, ends_downloads: bool) -> bool:
    """Whether a load continues, as a preload, when no request waits for it any more.

    A started load is worth finishing: a client whose deadline passed usually retries, and joins
    the load. With `ends_downloads` a running download ends, unless it is nearly complete; the
    fetched bytes stay on disk in any case, and the next load continues from them.
    """
    if not progress.has_started:
        return False
    if not ends_downloads:
        return True
    return progress.arrived_bytes >= NEARLY_DONE_SHARE * progress.total_bytes


@dataclass(eq=False, slots=True)
class Load:
    """A running load. Mutable: owned by the event loop."""

    spec: ModelSpec
    max_other_copies: int
    """Limit of the copies at other pods, while no request waits."""
    is_preload: bool
    """Whether the load continues without waiting requests."""
    started_s: float
    turn_s: float = 0.0
    """Start of its turn, on the clock of `started_s`."""
    token: int = 0
    """Token of the newest claim that the gateway made for a waiting request; 0: none."""
    ticket: LoadTicket = field(default_factory=LoadTicket)
    source: Tier = Tier.REMOTE
    waiters: int = 0
    askers: int = 0
    """Clients that asked for it ahead of requests and may take that back."""
    is_reported: bool = False
    """Whether the registry received the result, or another pod has the claim."""


class Weights(Protocol):
    """A model's open weights, complete or under download."""

    @property
    def tier(self) -> Tier: ...

    @property
    def memory_bytes(self) -> int:
        """Device memory that the model needs."""


class LoadReports(Protocol):
    """A pod's claims and reports of loads; implemented by `registration.registry_agent`."""

    def claim_of(self, token: int) -> LoadClaim: ...
    async def claim(self, key: str, max_other_copies: int) -> LoadClaim: ...
    async def start_load(self, key: str, claim: LoadClaim, source: Tier) -> None: ...
    async def finish_load(self, key: str, claim: LoadClaim, memory_bytes: int) -> None: ...
    async def fail_load(self, key: str, claim: LoadClaim, failure: LoadFailure) -> bool: ...
    def report_tier(self, key: str) -> None: ...
