"""What pods report to the registry: registration, heartbeats, and profiles of models.

A pod's slots bound the requests that it serves at once. A batch contains only requests in a slot,
so one slot means batches of one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, Final, NamedTuple


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU, a MIG instance of one, or the CPU of a pod's machine."""

    uuid: str = ""
    """Pods with one UUID share its memory; empty for a CPU, where each pod has its own."""
    product: str = ""
    """Name from the driver or the operating system; empty: not reported."""
    memory_bytes: int = 0
    """Memory of the whole accelerator; for a CPU, of the machine or container."""
    cores: int = 0
    """Multiprocessors of a GPU, cores of a CPU that the pod may use."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The driver's readings of a GPU, over all processes. None: not reported."""

    busy_pct: float | None = None
    """Part of the last sample period in which a kernel ran."""
    used_bytes: int | None = None
    temperature_c: float | None = None
    xid: int = 0
    """The driver's code of the last error since the pod started; 0: none."""


class AcceleratorKind(NamedTuple):
    """Product and share of an accelerator: pods of one kind take equally long for equal work."""

    product: str = ""
    """Empty: not reported, by a pod of an older version."""
    share: float = 1.0
    """Part of a GPU's compute, in (0, 1], to four digits."""

    def __str__(self) -> str:
        """`product|share`, as in Redis; empty for the default kind."""
        return f"{self.product}|{self.share:g}" if self.product or self.share != 1 else ""

    @classmethod
    def parse(cls, text: str) -> "AcceleratorKind":
        """Read `product|share`; raises ValueError."""
        product, _, share = text.rpartition("|")
        return cls(product, float(share)) if text else cls()


MEASURED: Final = "measured"
"""Source of a profile: a pod measured it on request."""
IN_SERVICE: Final = "in-service"
"""Source of a profile: a pod refined it by the times of live batches."""
IMPORTED: Final = "imported"
"""Source of a profile from a file that does not name one."""
MEASURED_FIELDS: Final = (
    "throughput_rps", "reserved_pct", "occupancy_pct", "mean_occupancy_pct", "sm_utilization_pct",
    "cpu_s",
)  # fmt: skip
"""Fields of a point that not every pod measures; written where measured."""
NEAR_PEAK_RATIO: Final = 0.95
"""Share of the highest throughput that counts as equally good."""


@dataclass(frozen=True, slots=True, order=True)
class ProfilePoint:
    """One batch size: the median time of its inference, and the memory used meanwhile."""

    rows: int
    latency_s: float
    memory_bytes: int | None = None
    """In addition to the weights; None where it was not measured."""
    throughput_rps: float | None = None
    """Placement uses it instead of rows / latency. This and the following: None if not measured."""
    reserved_pct: float | None = None
    """Reserved memory including the weights, in % of the accelerator's."""
    occupancy_pct: float | None = None
    """Highest achieved occupancy (Elvinger 2024, equation 5.3)."""
    mean_occupancy_pct: float | None = None
    """Its mean, weighted by time (section 5.3.1)."""
    sm_utilization_pct: float | None = None
    """Multiprocessors in use, weighted by time (section 5.3.2)."""
    cpu_s: float | None = None
    """CPU time of all threads of the inference, on a CPU pod: unlike `latency_s` the same, whoever
    shares the cores."""

    @property
    def rows_per_s(self) -> float:
        """Throughput of consecutive batches of this size."""
        return self.rows / self.latency_s


@dataclass(frozen=True, slots=True, order=True)
class ShareFactor:
    """Measured slowdown of a batch of `rows` with a share of the accelerator."""

    share_pct: float
    rows: int
    factor: float


@dataclass(frozen=True, slots=True, order=True)
class PairFactor:
    """Measured slowdown of batches while a neighbour computes on the same accelerator."""

    neighbour: str
    """`namespace/name`."""
    factor: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Cost of inferences by batch size: one generation of a model, accelerators of one product.

    `pilotlight profile` measures or imports it, pods refine it by live batches, the batcher reads
    it.
    """

    key: str
    product: str
    """Product of the accelerator; older versions wrote the device instead: `cpu` or `cuda:0`."""
    points: tuple[ProfilePoint, ...]
    """Ascending by rows, one per batch size."""
    limited_by: str = ""
    """Why no larger batch was measured: `throughput`, `memory`, `size`; empty: no reason."""
    source: str = MEASURED
    shares: tuple[ShareFactor, ...] = ()
    """Only what was measured: placement estimates other shares, and pairs."""
    pairs: tuple[PairFactor, ...] = ()
    fits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What plug-ins fitted to the points, shares and pairs, by plug-in; only they read it."""

    @property
    def best_rows(self) -> int:
        """The batch size to use; 1 without measurements."""
        return best_rows(self.points)


def best_rows(points: Sequence[ProfilePoint]) -> int:
    """The smallest batch whose throughput is near the highest: larger ones only add delay."""
    if not points:
        return 1
    highest = max(point.rows_per_s for point in points)
    return min(point.rows for point in points if point.rows_per_s >= NEAR_PEAK_RATIO * highest)


LEASE_TTL_S: Final = 3.0
CPU_SLOTS: Final = 8
"""Slots of a CPU pod without profiles; with profiles, the limit of slots per core.

Two CPU pods embed 3 to 4 times as many sentences per second with 8 slots as with 1
(`docs/runtime.md`, Slots)."""
GPU_SLOTS: Final = 64
"""Slots of a GPU pod without profiles: one batch of 64, the largest that live measurements try. Not
measured on a GPU."""
MAX_SLOTS: Final = 128
"""Limit of all default slots: two batches of 64."""


class PodPhase(StrEnum):
    """Whether a pod accepts requests."""

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


STAGES: Final = tuple(stage.value for stage in Stage)
"""In the order of a request."""


def host_port(host: str, port: int) -> str:
    """`host:port` as in a URL: IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod's registration, which does not change while the pod runs."""

    name: str
    address: str
    """`host:port` of its HTTP server."""
    node: str
    device: str = "cpu"
    slots: int = CPU_SLOTS
    memory_bytes: int = 0
    """Memory budget for models on the device."""
    link_bytes_per_s: float | None = None
    """Configured rate of its link to object storage; the prior for load times."""
    process_id: int = 0
    accelerator: Accelerator = field(default_factory=Accelerator)
    share: float = 1.0
    """Part of the accelerator's compute that the pod may use: by MPS, or of a GPU by MIG."""
    placed_model: str = ""
    """`namespace/name` of the only model that this pod serves, by a placement plan; empty: any."""
    place: str = ""
    """Name of the placement plan's place that the pod holds; empty: none."""
    takes_places: str = ""
    """Accelerator whose open places in the plan the pod takes; empty: none."""
    max_share: float = 1.0
    """Of a pod that takes places: the largest share that it can get, in (0, 1]."""
    has_server: bool = False
    """True if a model server beside the pod runs its models, of any format that it reads."""
    shared_memory: str = ""
    """Pods with the same value map each other's large outputs; empty: none shared."""
    uid: str = ""
    """UID of its Kubernetes object; empty outside of clusters."""

    @property
    def kind(self) -> AcceleratorKind:
        return AcceleratorKind(self.accelerator.product, round(self.share, 4))


@dataclass(frozen=True, slots=True)
class Samples:
    """New measurements of one model since the last heartbeat, in seconds.

    `measure` is a `Stage` value (`preprocess`, `infer`, `postprocess`, `network`), or
    `load:<tier>`: a load that started from that tier; `share`: the part of its batch's time
    proportional to a request's items; `assets`: fetching what an entry pod needs to forward
    requests to a model. `output-bytes`: sizes in bytes, in place of seconds. Samples of transfers
    have the key `TRANSFERS` (`registry.domain.estimates`).
    """

    key: str
    measure: str
    values_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PodSpeed:
    """How fast a pod computes, among those of its kind of accelerator."""

    slowness: float = 1.0
    """Its times over those of the kind's table."""
    alone_s: Mapping[str, float] = field(default_factory=dict)
    """By model key: the median of its latest inferences that shared no batch, in seconds."""

    def __post_init__(self) -> None:
        if not all(0.0 < each < inf for each in (self.slowness, *dict(self.alone_s).values())):
            raise ValueError(f"a pod's speed must be of positive numbers, was {self!r:.80}")


AVERAGE: Final = PodSpeed()


@dataclass(frozen=True, slots=True)
class CopyReport:
    """How a pod's copy of a model is used, as the pod reports it."""

    ongoing: int = 0
    served: int = 0
    """Requests that have ended since the copy was loaded."""
    idle_s: float | None = None
    """Time since the last of them ended; None: none has."""


@dataclass(frozen=True, slots=True)
class PodReport:
    """Content of a heartbeat."""

    used_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes in use per tier."""
    samples: tuple[Samples, ...] = ()
    loads_total: int = 0
    """Loads completed since the pod started."""
    idle_byte_s: float = 0.0
    """Since the pod started: bytes of models on the device x their seconds without a request."""
    copies: Mapping[str, CopyReport] = field(default_factory=dict)
    """Use of the models on the device, by key."""
    gpu: GpuReading | None = None
    """None: the pod has no GPU, or its driver cannot be read."""
    speed: PodSpeed = AVERAGE
    """Samples are as if it were average, so that all pods of a kind can share them."""


def placed_slots(slots: int, batch_size: int) -> int:
    """Slots of a pod with one model: `slots` (0: the default), at least for two of its batches."""
    return min(max(slots or CPU_SLOTS, 2 * batch_size), MAX_SLOTS)


def default_slots(device: str = "cpu", profiles: Iterable[Profile] = (), *, cores: int = 1) -> int:
    """Slots for two of the best batches: one runs on the device, the other is preprocessed.

    Never fewer than without profiles, since other models may not have one. On a CPU at most
    `CPU_SLOTS` per core, since models with small batches use the slots too.

    Args:
        device: torch's name of the pod's device.
        profiles: those of the pod's accelerator.
        cores: of a CPU, which the pod may use.
    """
    unmeasured, limit = (
        (CPU_SLOTS, CPU_SLOTS * max(cores, 1)) if device == "cpu" else (GPU_SLOTS, MAX_SLOTS)
    )
    rows = max((profile.best_rows for profile in profiles), default=0)
    return min(max(unmeasured, 2 * rows), limit, MAX_SLOTS)


def slots_at_start(accelerator: Accelerator, profiles: Iterable[Profile]) -> int:
    """Slots that a pod without the setting has if it starts now.

    `profiles`: of all models, on any accelerator.
    """
    device = "cuda" if accelerator.uuid else "cpu"
    mine = [each for each in profiles if each.product == accelerator.product]
    return default_slots(device, mine, cores=accelerator.cores)
