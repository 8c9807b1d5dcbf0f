"""A window for the selection policies, from the cluster state. Pure.

A pod is a worker. Its latency of a variant is the device's time per request, in batches by the
profile for its product of accelerator, else as measured at its kind of accelerator. A swap costs
nothing where the variant is warm, else the rest of its load; a pod is free when its backlog is
done. Variants without a current accuracy profile are left out.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from registry.domain.application import ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.device_backlog import device_backlog, is_idle, remaining_load
from registry.domain.estimates import seconds_at_size
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import Profile
from registry.domain.pod_state import PodState
from variants.application import named_variants, no_variants
from variants.planning.window import (
    SelectionPlan,
    VariantProfile,
    Window,
    WindowApplication,
    WindowRequest,
    Worker,
    penalty_of_one,
    profiled_accuracy,
    recalls,
)

MAX_WORKERS: Final = 16
"""Pods that a window is planned for, those with the most free slots first: more cost time."""


class BatchLatency(NamedTuple):
    """What a variant's requests cost a pod's device where they run as batches, by a profile.

    b requests take about `setup_s` + b * `each_s`: the line through the times of one request and of
    all of the window's, or of the largest batch that is worth forming. Every batch pays its setup,
    which a plan counts where a worker changes to another variant, as it counts swaps. A pod that
    idles does not wait for a batch: its first request runs alone.
    """

    setup_s: float
    each_s: float
    rest_s: float
    """Until the last request of a batch is done, from the turn of its first one."""


def batch_latency(
    profile: Profile, requests: int, *, max_rows: int | None, is_idle: bool
) -> BatchLatency:
    """`max_rows`: the largest batch by the model's annotation; None: by the profile."""
    points = [(float(each.rows), each.latency_s) for each in profile.points]
    one_s = seconds_at_size(points, 1)
    rows = min(requests, max_rows or profile.best_rows)
    if rows <= 1:
        return BatchLatency(0.0, one_s, 0.0)
    if is_idle:
        each_s = seconds_at_size(points, rows - 1) / (rows - 1)
    else:
        each_s = max(seconds_at_size(points, rows) - one_s, 0.0) / (rows - 1)
    each_s = min(each_s, one_s)
    return BatchLatency(one_s - each_s, each_s, each_s * (rows - 1))


@dataclass(frozen=True, slots=True)
class Variants:
    """An application's variants: those that can be chosen, and why others cannot."""

    usable: tuple[tuple[ModelSpec, VariantProfile], ...]
    problems: tuple[str, ...]

    def warm(self, state: ClusterState) -> Iterator[tuple[ModelSpec, PodState]]:
        """Each that can be chosen with each pod that holds it."""
        return ((spec, pod) for spec, _ in self.usable for pod in state.warm(spec.key))


def variants_of(application: ApplicationSpec, state: ClusterState) -> Variants:
    """The declared models that name the application, in the order of names."""
    usable, problems = [], []
    for spec, problem in named_variants(application, state):
        if problem is not None:
            problems.append(f"{spec.name.name}: {problem}")
            continue
        confusion = state.accuracies[spec.name].confusion
        profile = VariantProfile(
            spec.name.name, profiled_accuracy(confusion), tuple(recalls(confusion).tolist())
        )
        usable.append((spec, profile))
    return Variants(tuple(usable), tuple(problems))


class NoUsableVariant(Exception):
    """No variant of an application can be chosen; the text says what to do."""


def require_usable(application: ApplicationSpec, variants: Variants) -> None:
    """Raises NoUsableVariant."""
    name = application.name
    if not variants.usable:
        raise NoUsableVariant(
            f"application {name} has no variant that can be chosen; run `pilotlight profile {name} "
            f"--examples FILE`: {'; '.join(variants.problems)}"
            if variants.problems
            else no_variants(application)
        )


def window_application(
    spec: ApplicationSpec, variants: Variants, *, look_accuracy: float | None = None
) -> WindowApplication:
    """`look_accuracy`: profiled, of the look; None: it cannot answer requests."""
    peek = spec.sneak_peek
    return WindowApplication(
        str(spec.name),
        tuple(profile for _, profile in variants.usable),
        spec.penalty,
        look_accuracy if peek is not None and peek.short_circuit else None,
    )


def live_window(
    requests: Sequence[WindowRequest],
    applications: Sequence[WindowApplication],
    state: ClusterState,
    now_s: float,
) -> Window:
    """Pods without a free slot serve no request of the window, unless none has one."""
    asked = Counter(each.application for each in requests)
    variants = [
        (record.serving, asked[each.name])
        for each in applications
        for profile in each.variants
        for name in [ModelName(ModelName.parse(each.name).namespace, profile.name)]
        if (record := state.models.get(name)) is not None
    ]
    accepting = [
        pod
        for pod in state.pods.values()
        if pod.is_accepting and pod.slots and not pod.placed_model
    ]
    pods = [pod for pod in accepting if pod.has_free_slot] or accepting
    if len(pods) > MAX_WORKERS:
        warm = {pod.name for spec, _ in variants for pod in state.warm(spec.key)}
        pods.sort(key=lambda pod: (pod.name not in warm, pod.slots_busy - pod.slots, pod.name))
    workers = (_worker(pod, variants, state, now_s) for pod in pods[:MAX_WORKERS])
    return Window(tuple(requests), tuple(applications), tuple(workers), now_s)


def _worker(
    pod: PodState, variants: Sequence[tuple[ModelSpec, int]], state: ClusterState, now_s: float
) -> Worker:
    """With `variants` and the number of requests that each can answer."""
    pod_idles = is_idle(pod)
    latency, setup, swap, around, free_s = {}, {}, {}, {}, 0.0
    for spec, requests in variants:
        measured, name = pod.estimates[spec.key], spec.name.name
        times = measured.stages
        load = remaining_load(spec.key, pod, measured, state, now_s)
        if load is not None:
            if not _fits(spec.key, pod, state):
                continue
            swap[name] = load.seconds
        elif not pod_idles:
            backlog = device_backlog(pod, spec.key, None, state, now_s, times, 0.0)
            free_s = max(free_s, backlog.free_s)
        # What pods of the kind measured, in batches of whatever size.
        batch = BatchLatency(0.0, times.share_s, max(0.0, times.infer_s - times.share_s))
        profile = state.profiles.get(spec.name, {}).get(pod.kind.product)
        if profile is not None and profile.key == spec.key and profile.points:
            batch = batch_latency(
                profile, requests, max_rows=spec.policy.max_batch_size, is_idle=pod_idles
            )
        latency[name], setup[name] = batch.each_s, batch.setup_s
        around[name] = times.preprocess_s + times.postprocess_s + batch.rest_s
    return Worker(pod.name, latency, swap, around, now_s + free_s, setup_s=setup)


def _fits(key: str, pod: PodState, state: ClusterState) -> bool:
    """Whether a variant that is not warm would find memory without an eviction.

    It does where its load is in progress, or its size is not known yet.
    """
    residency = state.holders(key).get(pod.name)
    if residency is not None and residency.is_warming:
        return True
    return state.residency.device_bytes.get(key, 0) <= pod.free_bytes


class ColdVariants:
    """Losses of one gateway, in seconds, by application and variant.

    A cold variant would never be chosen while its load takes longer than requests wait. Each
    request loses the utility that it would gain were the variant warm, times its deadline; when the
    losses reach the time of the load, it begins in the background, as in
    `gateway.routing.cold_start`.
    """

    def __init__(self) -> None:
        self._losses: defaultdict[tuple[str, str], float] = defaultdict(float)

    def record(self, window: Window, plan: SelectionPlan) -> Iterator[tuple[ModelName, str]]:
        """Add what a planned window loses; gives the variants that are to be loaded, and where."""
        cold = _cold_variants(window)
        if not cold:
            return
        planned = {each.request: each.utility for each in plan.assignments}
        for application in window.applications:
            for profile in application.variants:
                if profile.name not in cold:
                    continue
                pod, load_s = cold[profile.name]
                lost_s = 0.0
                for each in window.requests:
                    if each.application == application.name:
                        ends_s = window.soonest_s(profile.name, each.arrival_s, is_warm=True)
                        assert ends_s is not None  # a worker can load it
                        late = penalty_of_one(application.penalty, each.deadline_s, ends_s)
                        gain = profile.accuracy_for(each.evidence) * (1.0 - late)
                        lost_s += max(0.0, gain - planned.get(each.id, 0.0)) * each.deadline_s
                key = (application.name, profile.name)
                self._losses[key] += lost_s
                if self._losses[key] >= load_s:
                    del self._losses[key]
                    yield ModelName(ModelName.parse(key[0]).namespace, profile.name), pod


def _cold_variants(window: Window) -> dict[str, tuple[str, float]]:
    """Variants that no worker holds: the worker where a load ends first, and its time."""
    found: dict[str, tuple[str, float]] = {}
    warm = set()
    for worker in window.workers:
        for variant in worker.latency_s:
            load_s = worker.swap_s.get(variant, 0.0)
            if load_s == 0.0:
                warm.add(variant)
            elif variant not in found or load_s < found[variant][1]:
                found[variant] = (worker.name, load_s)
    return {variant: load for variant, load in found.items() if variant not in warm}
