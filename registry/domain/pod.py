"""What a pod tells the registry about itself: identity when it starts, a report per heartbeat."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class PodPhase(StrEnum):
    """Whether a pod takes requests."""

    READY = "ready"
    DRAINING = "draining"


class Stage(StrEnum):
    """The stages of a request, as in `server-timing` and the metrics."""

    QUEUE = "queue"
    LOAD = "load"
    PREPROCESS = "preprocess"
    INFER = "infer"
    POSTPROCESS = "postprocess"
    NETWORK = "network"


def host_port(host: str, port: int) -> str:
    """`host:port` as URLs have it: addresses of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class PodInfo:
    """What does not change while a pod lives."""

    name: str
    address: str
    """`host:port` of its HTTP server."""
    node: str
    device: str = "cpu"
    slots: int = 1
    memory_bytes: int = 0
    """Budget for models on the device."""
    link_bytes_per_s: float | None = None
    """Rate of its link to object storage where one is set; the prior for load times."""
    process_id: int = 0


@dataclass(frozen=True, slots=True)
class Samples:
    """New measurements of one model since the last heartbeat, in seconds.

    `measure` is a `Stage` value (`preprocess`, `infer`, `postprocess`, `network`), or
    `load:<tier>` for a load that started from that tier, `share` for the part of its batch's time
    that a request's items account for, or `assets` for what an entry pod needs of a model to
    forward it.
    """

    key: str
    measure: str
    values_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PodReport:
    """What a heartbeat carries."""

    used_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes in use per tier."""
    samples: tuple[Samples, ...] = ()
    loads_total: int = 0
    """Loads this pod has completed since it started."""
    idle_byte_s: float = 0.0
    """Since it started: bytes of models on the device times the seconds no request used them."""
