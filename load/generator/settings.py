"""What one run of the generator is told; the same value goes to every worker process, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

LATE_S: Final = 0.01
"""A request sent later than this after its scheduled time counts as late."""
MOST_IN_FLIGHT: Final = 4096
TIMEOUT_S: Final = 300.0


class RequestProtocol(StrEnum):
    """How requests are put."""

    V1 = "v1"
    V2 = "v2"
    OPENAI = "openai"
    GRPC = "grpc"


SERVER_NAME: Final = "pilotlight"
"""What our gateway and pods call themselves in the V2 protocol's server metadata."""


class Layout(StrEnum):
    """Which paths name a model at the target."""

    GATEWAY = "gateway"
    """`/serving/NAMESPACE/NAME/…`: the tenant is the namespace."""
    POD = "pod"
    """`/v1/models/NAMESPACE~NAME:predict`: a Pilotlight pod without a gateway."""
    PLAIN = "plain"
    """`/v1/models/NAME:predict`: any KServe predictor; tenants are not told."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """One run. Times in seconds."""

    trace: str
    url: str
    protocol: RequestProtocol = RequestProtocol.V1
    layout: Layout = Layout.PLAIN
    policy: str | None = None
    host_header: str | None = None
    processes: int = 1
    duration_s: float | None = None
    seed: int = 0
    most_in_flight: int = MOST_IN_FLIGHT
    """Over all processes, at least one each; what comes on top is an error and never sent."""
    timeout_s: float = TIMEOUT_S
    payloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By `tenant/model`, or by `model`: what `payloads.Content` is made of."""

    def most_in_flight_of(self, worker: int) -> int:
        """One worker's share of `most_in_flight`; the shares of all add up to it."""
        share, rest = divmod(self.most_in_flight, self.processes)
        return share + (worker < rest)

    def to_json(self) -> str:
        """One line, for a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunSettings:
        """What `to_json` wrote."""
        fields = json.loads(text)
        fields["protocol"] = RequestProtocol(fields["protocol"])
        fields["layout"] = Layout(fields["layout"])
        return cls(**fields)
