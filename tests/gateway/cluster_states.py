"""Small cluster states for tests, built through a `ChangeApplier`, as the registry would."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.routing.decision import RequestView
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.model import LoadFailure, ModelName, ModelPolicy, ModelSpec
from registry.domain.pod import Accelerator, PodInfo, PodPhase
from registry.domain.records import encode, encode_spec

NOW_S = 1_000.0
KEY = "default/m@0"


@dataclass(frozen=True)
class PodSketch:
    """A pod; `at` is the residency of `KEY`: `nothing`, `warm`, a tier, or `loading:TIER`."""

    name: str
    at: str = "nothing"
    slots: int = 1
    busy: int = 0
    ongoing: int | None = None
    phase: PodPhase = PodPhase.READY
    is_suspect: bool = False
    memory_bytes: int = 1000
    used_bytes: int = 0
    loading_since_s: float = NOW_S
    link_bytes_per_s: float | None = None
    product: str = ""


def cluster(
    *pods: PodSketch, key: str = KEY, measured: Mapping[str, float] | None = None
) -> ClusterState:
    """A cluster of these pods in this order; `measured`: seconds by measure, or `measure|kind`."""
    state = ClusterState()
    changes: list[list[Any]] = []
    for pod in pods:
        changes += _pod_changes(pod, key)
    for measure, seconds in (measured or {}).items():
        changes.append(["samples", key, measure, [seconds]])
    ChangeApplier(state).apply(1, changes)
    for pod in pods:
        state.pods[pod.name].set_suspect(is_suspect=pod.is_suspect)
    return state


def _pod_changes(pod: PodSketch, key: str) -> list[list[Any]]:
    info = PodInfo(
        name=pod.name,
        address="127.0.0.1:1",
        node=pod.name,
        slots=pod.slots,
        memory_bytes=pod.memory_bytes,
        link_bytes_per_s=pod.link_bytes_per_s,
        accelerator=Accelerator(product=pod.product),
    )
    used = f'{{"device":{pod.used_bytes}}}'
    ongoing = pod.busy if pod.ongoing is None else pod.ongoing
    changes: list[list[Any]] = [
        ["pod", pod.name, encode(info), 1, pod.phase.value, used, 0, pod.busy, ongoing]
    ]
    since_ms = int(pod.loading_since_s * 1000)
    if pod.at == "warm":
        changes.append(["at", key, pod.name, f"device|-|{since_ms}|100"])
    elif pod.at.startswith("loading:"):
        tier = pod.at.removeprefix("loading:")
        changes.append(["at", key, pod.name, f"{tier}|{tier}|{since_ms}|100"])
    elif pod.at != "nothing":
        changes.append(["at", key, pod.name, f"{pod.at}|-|{since_ms}|100"])
    return changes


def request(**fields: Any) -> RequestView:
    """A request for `KEY` that arrives now."""
    return RequestView(**{"key": KEY, "arrival_s": NOW_S, **fields})


def declare(
    state: ClusterState,
    name: str = "m",
    *,
    namespace: str = "default",
    previous: ModelSpec | None = None,
    failure: LoadFailure | None = None,
    **policy: Any,
) -> ModelSpec:
    """Declare a model; returns its specification."""
    spec = ModelSpec(ModelName(namespace, name), f"file:///{name}", policy=ModelPolicy(**policy))
    ChangeApplier(state).apply(
        state.version + 1,
        [
            [
                "model",
                str(spec.name),
                encode_spec(spec),
                encode_spec(previous) if previous else False,
                encode(failure) if failure else False,
            ]
        ],
    )
    return spec


@dataclass(frozen=True)
class Liu:
    """The times of Liu 2025, section 6.4, scaled: T_CS, T_I, T_P, T_N in seconds."""

    load_s: float = 0.8
    infer_s: float = 0.3
    around_s: float = 0.0
    network_s: float = 0.002
    measured: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "measured",
            {
                "load:remote": self.load_s,
                "infer": self.infer_s,
                "preprocess": 0.0,
                "postprocess": self.around_s,
                "network": self.network_s,
            },
        )
