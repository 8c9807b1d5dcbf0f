"""What the endpoints beside inference read of each pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.reservations import Reservations
    from gateway.telemetry.explanations import Explanations
    from gateway.upstream.model_metadata import ModelMetadata
    from registry.redis.watch import ClusterWatch


@dataclass(frozen=True, slots=True)
class ServedPool:
    """A pool's parts, by its name."""

    name: str
    watch: ClusterWatch
    explanations: Explanations
    dispatcher: Dispatcher
    reservations: Reservations
    metadata: ModelMetadata
