"""A window for the selection policies, from the cluster state. Pure.

A pod is a worker. Its latency of a variant is what a request holds a slot for, measured; a swap
costs nothing where the variant is warm, else the rest of its load; it is free when its backlog is
done. Variants without a current accuracy profile are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.routing.device_backlog import device_backlog, is_idle
from gateway.routing.latency_model import remaining_load
from gateway.selection.accuracy import profiled_accuracy, recalls
from gateway.selection.class_posterior import prior_weights
from gateway.selection.window import VariantProfile, Window, WindowApplication, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.selection.window import WindowRequest
    from registry.domain.application import ApplicationSpec
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelSpec
    from registry.domain.pod_state import PodState


@dataclass(frozen=True, slots=True)
class Variants:
    """An application's variants: those that can be chosen, and why others cannot."""

    usable: tuple[tuple[ModelSpec, VariantProfile], ...]
    problems: tuple[str, ...]


def variants_of(application: ApplicationSpec, state: ClusterState) -> Variants:
    """The declared models that name the application, in the order of names."""
    usable, problems = [], []
    for name, record in sorted(state.models.items()):
        spec = record.serving
        is_named = spec.policy.application == application.name.name
        if not is_named or name.namespace != application.name.namespace:
            continue
        problem = _profile_problem(application, spec, state)
        if problem is not None:
            problems.append(f"{name.name}: {problem}")
            continue
        confusion = state.accuracies[name].confusion
        profile = VariantProfile(
            name.name, profiled_accuracy(confusion), tuple(recalls(confusion).tolist())
        )
        usable.append((spec, profile))
    return Variants(tuple(usable), tuple(problems))


def _profile_problem(
    application: ApplicationSpec, spec: ModelSpec, state: ClusterState
) -> str | None:
    profile = state.accuracies.get(spec.name)
    if profile is None:
        return "has no accuracy profile"
    if profile.key != spec.key:
        return "its accuracy profile is of another generation"
    if profile.classes != application.classes:
        return "its accuracy profile is of other classes"
    return None


def live_window(
    requests: Sequence[WindowRequest],
    applications: Sequence[tuple[ApplicationSpec, Variants]],
    state: ClusterState,
    now_s: float,
) -> Window:
    specs = [spec for _, variants in applications for spec, _ in variants.usable]
    pods = [pod for pod in state.pods.values() if _is_open(pod)]
    return Window(
        tuple(requests),
        tuple(_window_application(each, variants) for each, variants in applications),
        tuple(_worker(pod, specs, state, now_s) for pod in pods),
        now_s,
    )


def _is_open(pod: PodState) -> bool:
    """Whether any variant may be served there."""
    return pod.is_accepting and pod.slots > 0 and not pod.placed_model


def has_idle_pod(variants: Variants, state: ClusterState) -> bool:
    """True if an idle pod holds a variant: waiting would only delay the request."""
    return any(
        is_idle(pod) and pod.has_free_slot
        for spec, _ in variants.usable
        for pod in state.warm(spec.key)
    )


def _window_application(application: ApplicationSpec, variants: Variants) -> WindowApplication:
    alpha = prior_weights(application.prior, len(application.classes), application.frequencies)
    return WindowApplication(
        str(application.name),
        tuple(profile for _, profile in variants.usable),
        application.penalty,
        tuple(alpha.tolist()),
        normalises_accuracy=application.normalises_accuracy,
    )


def _worker(pod: PodState, specs: Sequence[ModelSpec], state: ClusterState, now_s: float) -> Worker:
    latency, swap, free_s = {}, {}, 0.0
    for spec in specs:
        measured = pod.estimates[spec.key]
        latency[spec.name.name] = measured.stages.hold_s
        load = remaining_load(spec.key, pod, measured, state, now_s)
        if load is not None:
            swap[spec.name.name] = load.seconds
        elif not is_idle(pod):
            backlog = device_backlog(pod, spec.key, None, state, now_s, ready_s=0.0, load_s=0.0)
            free_s = max(free_s, backlog.free_s)
    return Worker(pod.name, latency, swap, now_s + free_s)
