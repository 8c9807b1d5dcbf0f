"""Models, pods, profiles and autoscaler actions as JSON in Redis, one field per attribute.

Fields that a newer version wrote are ignored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from registry.domain.application import ApplicationSpec
from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec
from registry.domain.pod import MEASURED_FIELDS, AcceleratorKind, Profile

_ANY_KIND: Final = AcceleratorKind()
POOL = "pool"
"""Subject of actions on pods; actions on a model have its name as subject."""


@dataclass(frozen=True, slots=True)
class PodShape:
    """A wanted number of pods of one accelerator kind."""

    count: int
    kind: AcceleratorKind = _ANY_KIND
    """The default matches any accelerator."""
    batch_caps: tuple[tuple[str, int], ...] = ()
    """(model key, rows): the largest batches of models without the annotation `max-batch-size`."""


@dataclass(frozen=True, slots=True)
class WantedPods:
    """The wanted pods of a pool, and the names of the pods to remove first."""

    shapes: tuple[PodShape, ...]
    leaving: tuple[str, ...] = ()

    @property
    def pods(self) -> int:
        """The total of all shapes: the size of the pool."""
        return sum(shape.count for shape in self.shapes)

    def batch_caps(self, kind: AcceleratorKind) -> dict[str, int]:
        """Rows by model key, in pods of this kind."""
        shapes = [each for each in self.shapes if each.kind in (kind, _ANY_KIND)]
        return dict(cap for shape in shapes for cap in shape.batch_caps)


class ActionOutcome(StrEnum):
    """The state of an action: in progress, or how it ended."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    """The load's claim was refused: another pod loads the model, or has it."""


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One action of an autoscaler, and why it was taken."""

    verb: str
    """`load`, `demote` or `scale`."""
    subject: str
    """The model's name, or `POOL`."""
    reason: str
    """One of a closed set, since it is also a metric label."""
    detail: str
    """The reason as a sentence. Its name in JSON is `words`."""
    at_s: float
    """Registry time at which the action began."""
    pod: str = ""
    tier: str = ""
    outcome: str = ActionOutcome.BEGUN
    error: str = ""

    @property
    def id(self) -> str:
        """At most one action with this id is in progress at a time."""
        return f"{self.subject}|{self.pod}"


@dataclass(frozen=True, slots=True)
class LeaderLease:
    """The autoscaler that plans for the pool; `until_s` is registry time."""

    holder: str
    token: int
    until_s: float


@dataclass(frozen=True, slots=True)
class OngoingActions:
    """Actions that have not ended, and the pods wanted; None before the first decision."""

    actions: tuple[ActionRecord, ...]
    wanted: WantedPods | None


@dataclass(frozen=True, slots=True)
class AutoscalerRecords:
    """Everything that autoscalers have recorded for a pool."""

    leader: LeaderLease | None
    """None while no autoscaler holds the lease."""
    ongoing: OngoingActions
    last_by_model: dict[str, ActionRecord]
    history: tuple[ActionRecord, ...]
    """The latest actions on all subjects, newest first."""
    read_at_s: float
    """Registry time at which all of this was so."""


MAX_STEP_MODELS: Final = 256
"""Models declared in one step. Redis serves no other client meanwhile: 10,000 at once took 0.3 s of
an idle core, and on a busy one longer than the timeout of other calls."""
MAX_STEP_BYTES: Final = 1 << 18
"""Bytes of specifications in one step; each step is also one message to every watched copy."""


_Value = TypeVar("_Value")


def encode(value: object, option: int | None = None) -> str:
    """A record as JSON, a field per attribute."""
    return orjson.dumps(value, default=_named_fields, option=option).decode()


def _named_fields(value: object) -> dict[str, Any]:
    if isinstance(value, ModelName):
        return value._asdict()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def decode(kind: type[_Value], stored: str | Mapping[str, Any]) -> _Value:
    """A record from its JSON. Null is as a missing field: the default holds.

    Raises ValueError, TypeError.
    """
    read: Callable[[Any], _Value] = _reader(kind)  # type: ignore[arg-type]  # types are hashable
    return read(orjson.loads(stored) if isinstance(stored, str) else stored)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What reads a value of the type of a field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _reader(next(each for each in arguments if each is not NoneType))
    if origin is tuple:
        read = _reader(arguments[0])
        return tuple if read is _as_it_is else lambda values: tuple(map(read, values))
    if not isinstance(kind, type) or not (is_dataclass(kind) or hasattr(kind, "_fields")):
        return kind if isinstance(kind, type) and issubclass(kind, StrEnum) else _as_it_is
    hints = get_type_hints(kind)
    names = kind._fields if hasattr(kind, "_fields") else [f.name for f in fields(kind) if f.init]
    readers = {name: _reader(hints[name]) for name in names}

    def read_fields(stored: Any) -> Any:
        if not isinstance(stored, Mapping):
            raise TypeError(f"{kind.__name__} must be an object, was {stored!r:.80}")
        return kind(
            **{
                name: read(value)
                for name, read in readers.items()
                if (value := stored.get(name)) is not None
            }
        )

    return read_fields


def _as_it_is(value: Any) -> Any:
    return value


def encode_spec(spec: ModelSpec) -> str:
    return encode(asdict(spec), orjson.OPT_SORT_KEYS)  # as older versions, to compare texts


def encode_application(spec: ApplicationSpec) -> str:
    """With two fields that older gateways do not go without."""
    document = asdict(spec) | {"prior": "uninformative", "frequencies": ()}
    return encode(document, orjson.OPT_SORT_KEYS)


def decode_record(spec: str, previous: str | bool, failure: str | bool) -> ModelRecord:
    """A model's record from its three stored parts; a missing part is False."""
    return ModelRecord(
        spec=decode(ModelSpec, spec),
        previous=decode(ModelSpec, previous) if isinstance(previous, str) else None,
        failure=decode(LoadFailure, failure) if isinstance(failure, str) else None,
    )


def profile_document(profile: Profile) -> dict[str, Any]:
    """A profile as in JSON, in Redis and in responses: `device` is the accelerator's product."""
    document = asdict(profile)
    for point in document["points"]:
        for name in MEASURED_FIELDS:
            if point[name] is None:
                del point[name]
    for name in ("shares", "pairs"):
        if not document[name]:
            del document[name]
    document |= document.pop("fits")
    return {"device" if key == "product" else key: value for key, value in document.items()}


def encode_profile(profile: Profile) -> str:
    return encode(profile_document(profile))


def decode_profile(text: str) -> Profile:
    document: dict[str, Any] = orjson.loads(text)
    fits = {name: each for name, each in document.items() if isinstance(each, dict)}
    return decode(Profile, {**document, "product": document["device"], "fits": fits})


def encode_wanted(wanted: WantedPods) -> str:
    """With the number of all pods, which older versions read; alone if it is the only shape."""
    document: dict[str, Any] = {"pods": wanted.pods, "leaving": wanted.leaving}
    if wanted.shapes != (PodShape(wanted.pods),):
        document["shapes"] = [
            {"count": shape.count, **shape.kind._asdict(), "batch_caps": shape.batch_caps}
            for shape in wanted.shapes
        ]
    return encode(document)


def decode_wanted(text: str) -> WantedPods:
    stored = orjson.loads(text)
    shapes = stored.get("shapes", [{"count": stored["pods"]}])
    found = [
        PodShape(
            each["count"],
            AcceleratorKind(each.get("product", ""), each.get("share", 1.0)),
            tuple((key, rows) for key, rows in each.get("batch_caps", ())),
        )
        for each in shapes
    ]
    return WantedPods(tuple(found), tuple(stored["leaving"]))


def action_document(record: ActionRecord) -> dict[str, Any]:
    """An action as in JSON, in Redis and in the output of the command line."""
    return {"words" if key == "detail" else key: value for key, value in asdict(record).items()}


def encode_action(record: ActionRecord) -> str:
    return encode(action_document(record))


def decode_action(text: str) -> ActionRecord:
    stored: dict[str, Any] = orjson.loads(text)
    return decode(ActionRecord, stored | {"detail": stored["words"]})


def declaration_steps(specs: Iterable[ModelSpec]) -> Iterator[list[tuple[str, str, str]]]:
    """Many models as arguments of the operation `put`, in steps within the limits above.

    Between steps Redis serves other clients.
    """
    step: list[tuple[str, str, str]] = []
    size = 0
    for spec in specs:
        text = encode_spec(spec)
        if step and (len(step) == MAX_STEP_MODELS or size + len(text) > MAX_STEP_BYTES):
            yield step
            step, size = [], 0
        step.append((str(spec.name), spec.key, text))
        size += len(text)
    if step:
        yield step


START_TIMEOUT_S: Final = 120.0
"""A placed pod must be warm by then: importing torch takes a minute on a busy machine."""


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A copy of a model on an accelerator."""

    model: str
    """`namespace/name`."""
    accelerator: str
    """UUID of a GPU, or a name of a group of cores such as `cpu-0`."""
    batch_size: int
    """The most requests in one batch."""
    share_pct: float | None = None
    """Limit of its compute, in % of the accelerator; None: none."""
    rate_rps: float = 0.0
    """Its part of the model's rate."""


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod that runs one replica, or on a cluster the place of one."""

    name: str
    replica: PlacedReplica
    since_s: float
    """Registry time at which it was wanted."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """What the plan expects for one model."""

    model: str
    rate_rps: float
    slo_s: float
    goodput_rps: float
    reason: str = ""
    """Why the goodput is below the rate, or why the model is not placed; empty: neither."""
    latency_scale: float = 1.0
    """By how much its batches took longer than profiled and predicted, which plans reckon with."""


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """The plan that is carried out, and the pods wanted now; written with the leader's token.

    A placed pod serves one model on one accelerator. On one machine the platform starts and drains
    the listed pods; on a cluster they are places that pods of the pool take. Pods read their batch
    cap from it.
    """

    planner: str
    reason: str
    """Why it was planned."""
    planned_at_s: float
    accelerators: tuple[str, ...] = ()
    """Those that it was planned for."""
    models: tuple[PlannedModel, ...] = ()
    target: tuple[PlacedReplica, ...] = ()
    """The replicas of the plan."""
    pods: tuple[PlacedPod, ...] = ()
    """On the way to the target: pods come and leave by one move per accelerator at a time."""
    next_number: int = 0
    """Of the next pod: names are never used again."""

    @property
    def latency_scales(self) -> dict[str, float]:
        """By model, where it is not 1."""
        return {each.model: each.latency_scale for each in self.models if each.latency_scale != 1}

    def pod(self, name: str) -> PlacedPod | None:
        return next((each for each in self.pods if each.name == name), None)
