"""Settings of a run of the load generator; every worker process gets the same value."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from load.generator.content import Content

LATE_S: Final = 0.01
"""A request that is sent later than this after its scheduled time counts as late."""
MAX_IN_FLIGHT: Final = 4096
TIMEOUT_S: Final = 300.0
SERVER_NAME: Final = "pilotlight"
"""Name of Pilotlight's gateway and pods in the server metadata of the V2 protocol."""


class RequestProtocol(StrEnum):
    V1 = "v1"
    V2 = "v2"
    OPENAI = "openai"
    GRPC = "grpc"


class Layout(StrEnum):
    """How paths of the target name a model."""

    GATEWAY = "gateway"
    """`/serving/NAMESPACE/NAME/…`: the tenant is the namespace."""
    POD = "pod"
    """`/v1/models/NAMESPACE~NAME:predict`: a Pilotlight pod without a gateway."""
    PLAIN = "plain"
    """`/v1/models/NAME:predict`: any KServe predictor; tenants are not sent."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    trace: str
    url: str
    protocol: RequestProtocol = RequestProtocol.V1
    layout: Layout = Layout.PLAIN
    policy: str | None = None
    host_header: str | None = None
    processes: int = 1
    duration_s: float | None = None
    seed: int = 0
    max_in_flight: int = MAX_IN_FLIGHT
    """Over all processes, at least one each; a request beyond it is an error and is not sent."""
    timeout_s: float = TIMEOUT_S
    payloads: dict[str, Content] = field(default_factory=dict)
    """By `tenant/model`, or by `model`."""
    key: str = field(default="", repr=False)
    """API key or token that every request carries, if any."""

    @property
    def credentials(self) -> dict[str, str]:
        """Headers of every request, also of those before and after the run."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def worker_max_in_flight(self, worker: int) -> int:
        """One worker's share of `max_in_flight`; the shares of all add up to it."""
        share, rest = divmod(self.max_in_flight, self.processes)
        return share + (worker < rest)
