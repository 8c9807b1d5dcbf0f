"""Most requests are placed in a fraction of a decision's time, and all as by `route_request`."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from gateway.dispatch.pending_placement import PendingPlacement
from gateway.routing.auto import run_warm
from gateway.routing.decision import SendTo
from gateway.routing.route_request import (
    IncomingRequest,
    RoutingResult,
    is_plain,
    route_request,
    soonest_in_time,
    view_of,
)
from registry.domain.cluster import ClusterState
from registry.domain.model import LoadFailure, ModelName, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod_index import Residency
from registry.inference_service.components import machine_needs
from tests.gateway.cluster_states import NOW_S, declare
from tests.gateway.routing.test_early_decisions import OTHER, random_state
from tests.gateway.virtual_placer import VirtualPlacer

STATES = 2500
SERIES = 200
NAME = ModelName("default", "m")
KEY = ModelSpec(NAME, "file:///m").key
POLICIES = [*(RoutingPolicy.AUTO,) * 5, *RoutingPolicy]


def random_request(rng: random.Random, now_s: float, model: ModelName = NAME) -> IncomingRequest:
    return IncomingRequest(
        f"r{rng.random()}",
        model,
        now_s - rng.choice([0.0, 0.1]),
        rng.random(),
        rng.randrange(99),
        policy=rng.choice(POLICIES) if rng.random() < 0.1 else None,
        deadline_s=now_s + rng.uniform(-0.01, 0.5) if rng.random() < 0.4 else None,
        size_class=rng.choice([None, 0, 3]),
        load_failed=rng.random() < 0.1,
    )


def random_failure(rng: random.Random, now_s: float) -> LoadFailure | None:
    if rng.random() < 0.9:
        return None
    return LoadFailure(rng.choice([KEY, "m@1"]), "no-memory", "none", 1, now_s + rng.uniform(-1, 1))


def route_plain(
    request: IncomingRequest, state: ClusterState, now_s: float
) -> RoutingResult | None:
    """As `Admission.decide` does with one that is alone."""
    record = state.models.get(request.model)
    if record is None or request.policy is not None or not is_plain(record.serving):
        return None
    spec, deadline_s = record.serving, request.deadline_s
    found = soonest_in_time(spec.key, request.size_class, deadline_s, state, now_s)
    if found is None:
        return None
    return RoutingResult(run_warm(found), spec.policy.routing, spec, is_plain=True)


@pytest.mark.slow
def test_a_plain_request_is_routed_as_any_other() -> None:
    plain = 0
    for seed in range(STATES):
        rng = random.Random(seed)
        state, now_s = random_state(rng, KEY)
        declare(
            state,
            failure=random_failure(rng, now_s),
            routing=rng.choice(POLICIES),
            max_load_wait_s=rng.choice([0.0, 0.3]),
        )
        if rng.random() < 0.05:
            record = state.models[NAME]
            needy = replace(record.spec, needs=machine_needs({"transformer": {"containers": [{}]}}))
            state.models[NAME] = replace(record, spec=needy)
        request = random_request(rng, now_s)
        found = route_plain(request, state, now_s)
        if found is None:
            continue
        plain += 1
        expected = route_request(request, state.models, state, now_s=now_s)
        assert found.spec is not None
        assert expected.view == view_of(request, found.spec)
        assert replace(found, view=expected.view, is_plain=False) == expected
    assert plain > STATES / 10


@dataclass
class Series:
    """Random requests, their ends, and changes of the pool; equal ones of equal seeds."""

    rng: random.Random
    has_plain: bool
    results: list[RoutingResult] = field(default_factory=list)
    plain: int = 0
    sequence: int = 0

    def __post_init__(self) -> None:
        rng = self.rng
        state, now_s = random_state(rng, KEY)
        self.names = [NAME]
        for namespace in rng.choice([["team"], ["team"], []]):
            self.names.append(declare(state, "other", namespace=namespace).name)
        declare(
            state,
            routing=rng.choice(POLICIES),
            queue_depth=rng.choice([0, 2, 1024]),
            deadline_s=None,
        )
        self.virtual = VirtualPlacer(state)
        self.virtual.events.now_s = now_s
        if rng.random() < 0.5:
            self._calm(state)
        admission = self.virtual.placer.admission
        admission._on_routed = self._on_routed
        if not self.has_plain:
            admission._decide_plain = lambda *_: None  # type: ignore[method-assign]

    def _calm(self, state: ClusterState) -> None:
        """All pods have the model, which is routed by cost."""
        declare(state)
        for pod in state.pods:
            state.residency.put(KEY, pod, Residency(Tier.DEVICE, None, NOW_S, 100))

    def _on_routed(
        self, request: IncomingRequest, result: RoutingResult, state: ClusterState, now_s: float
    ) -> None:
        del state, now_s
        if result.is_plain:
            self.plain += 1
            assert result.spec is not None
            result = replace(result, view=view_of(request, result.spec), is_plain=False)
        self.results.append(result)

    def run(self) -> Iterator[object]:
        """After each step, all that later decisions depend on."""
        rng, virtual = self.rng, self.virtual
        placements: list[PendingPlacement] = []
        for _ in range(rng.choice([5, 30])):
            action = rng.random()
            if action < 0.7:
                placements.append(self._place())
            elif action < 0.85 and placements:
                self._end(placements.pop(rng.randrange(len(placements))))
            else:
                self._change()
            virtual.run_for(rng.choice([0.0, 0.0, 0.001, 0.05, 3.0]))
            yield self.seen()

    def _place(self) -> PendingPlacement:
        rng, virtual = self.rng, self.virtual
        request = random_request(rng, virtual.events.now_s, rng.choice(self.names))
        request.sequence = self.sequence = self.sequence + 1
        pods = list(virtual.state.pods)
        place_at = rng.choice(["*", *pods]) if rng.random() < 0.1 else ""
        placement = PendingPlacement(request, place_at)
        if rng.random() < 0.1:
            virtual.replies.append(False)
        error = virtual.placer.place(placement)
        if error is not None:
            virtual.on_rejected(placement, error)
        elif not placement.is_pending:
            virtual.on_placed(placement)
        return placement

    def _end(self, placement: PendingPlacement) -> None:
        if placement.is_pending:
            self.virtual.placer.cancel(placement)
        elif placement.work is not None:
            pod = next(
                each
                for each in self.virtual.state.pods.values()
                if placement.work.predict is each.work
            )
            placement.end_work(is_cancelled=self.rng.random() < 0.2)
            self.virtual.end_request(pod.name)

    def _change(self) -> None:
        rng, state = self.rng, self.virtual.state
        pod = state.pods[rng.choice(list(state.pods))]
        change = rng.random()
        if change < 0.3:
            pod.set_suspect(is_suspect=not pod.is_suspect)
        elif change < 0.6:
            pod.estimates.add(KEY, "infer", [rng.choice([0.002, 0.3])] * 9)
        else:
            key = rng.choice([KEY, OTHER])
            state.residency.put(key, pod.name, Residency(Tier.DEVICE, None, NOW_S, 100))
        self.virtual.placer.notify_change()

    def seen(self) -> object:
        state, admission = self.virtual.state, self.virtual.placer.admission
        pods = [
            (pod.name, pod.slots_busy, pod.inferring, [vars_of(each) for each in pod.work.holders])
            for pod in state.pods.values()
        ]
        probes = admission._probes
        return (
            self.results,
            pods,
            self.virtual.reserved_s,
            [str(e) for e in self.virtual.errors],
            state.arrivals.rates_per_s(self.virtual.events.now_s),
            state.queue_depths,
            {name: each.credit for name, each in admission.records.items()},
            probes._late._pauses,
            vars(admission._tenants),
        )


def vars_of(work: object) -> tuple[object, ...]:
    names = ("key", "placed_s", "due_s", "ready_s", "start_s", "share_s", "infer_s", "after_s")
    return tuple(getattr(work, name) for name in names)


@pytest.mark.slow
def test_a_series_of_requests_is_placed_as_without_the_plain_case() -> None:
    plain = total = 0
    for seed in range(SERIES):
        series = Series(random.Random(seed), has_plain=True)
        expected = Series(random.Random(seed), has_plain=False)
        for found, wanted in zip(series.run(), expected.run(), strict=True):
            assert found == wanted
        plain, total = plain + series.plain, total + len(series.results)
    assert plain > total / 20


@pytest.mark.parametrize("policy", sorted(set(RoutingPolicy) - {RoutingPolicy.AUTO}))
def test_policies_that_compare_no_options_are_asked(policy: str) -> None:
    state, now_s = random_state(random.Random(3), KEY)
    declare(state, routing=policy)
    request = IncomingRequest("r", NAME, now_s, 0.0, 1)
    assert route_plain(request, state, now_s) is None
    decision = route_request(request, state.models, state, now_s=now_s).decision
    assert not isinstance(decision, SendTo) or decision.forecast is None
