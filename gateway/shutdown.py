"""How far the gateway's shutdown is: every part that serves requests looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Shutdown:
    """One per gateway."""

    is_leaving: bool = False
    """Requests are served, but each response closes its connection."""
    is_draining: bool = False
    """New requests are rejected."""

    @property
    def has_begun(self) -> bool:
        return self.is_leaving or self.is_draining
