"""How far the gateway's shutdown is: every part that serves requests looks."""

from dataclasses import dataclass

from gateway.errors import ShuttingDown


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

    def refuse_new(self) -> None:
        """Raises ShuttingDown while the gateway drains."""
        if self.is_draining:
            raise ShuttingDown("the gateway is shutting down", retry_after_s=1.0)
