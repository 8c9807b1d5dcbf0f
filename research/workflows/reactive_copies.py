"""The copies of models that `reactive` keeps on the live cluster, and steps' places at them.

A pod runs one batch at a time in one process, so a model has at most one copy at a pod, and a copy
that ends is merely not used any more: the pod evicts its model when it needs the memory.
"""

from math import inf
from typing import Final

from registry.domain.model import ModelSpec, name_of_key
from registry.domain.pod_state import PodState
from research.workflows.reactive import (
    CopiesView,
    ModelCopy,
    ReactiveParams,
    ReactiveState,
    reactive,
    shortest_queue,
)
from workflows.service.pod_queues import PodQueues
from workflows.service.preloads import Preloads
from workflows.service.run import Run, RunStep

OWNER: Final = "reactive"
"""In place of a run, which loads are asked for by."""


class ReactiveCopies:
    """Owned by the event loop."""

    def __init__(self, pods: PodQueues, preloads: Preloads, *, is_one_per_device: bool) -> None:
        self._pods = pods
        self._preloads = preloads
        self._owner = f"{OWNER}-alone" if is_one_per_device else OWNER
        self._params = ReactiveParams(is_one_per_device=is_one_per_device, several_of_model=False)
        self._state = ReactiveState()
        self._copies: list[tuple[str, str]] = []
        """Key and pod."""
        self._models: set[str] = set()

    def place(self, run: Run, step: RunStep) -> str:
        """The pod of a step; empty where its model finds no room, so that it waits nowhere."""
        del run
        key = self._pods.key(step.model)
        self._models.add(key)
        pods = self._pods.accepting()
        chosen = self._shortest(key, pods)
        if chosen is None:
            self._decide(pods, {key: 1})
            chosen = self._shortest(key, pods)
        return "" if chosen is None else self._copies[chosen][1]

    def observe(self) -> None:
        """Add and remove copies; called about once a second."""
        if self._models:
            self._decide(self._pods.accepting(), {})

    def _shortest(self, key: str, pods: list[PodState]) -> int | None:
        return shortest_queue(self._seen(pods), key)

    def _seen(self, pods: list[PodState]) -> list[ModelCopy]:
        """The copies of models served now, at pods that still are; others are forgotten."""
        self._models = {key for key in self._models if self._spec(key) is not None}
        positions = {pod.name: position for position, pod in enumerate(pods)}
        self._copies = [
            (key, pod) for key, pod in self._copies
            if pod in positions and key in self._models
        ]  # fmt: skip
        return [
            ModelCopy(
                key, positions[pod], self._pods.steps.count(pod, key), self._is_loading(key, pod)
            )
            for key, pod in self._copies
        ]

    def _spec(self, key: str) -> ModelSpec | None:
        """None: the model is gone, or has another generation."""
        spec = self._pods.spec(name_of_key(key))
        return spec if spec is not None and spec.key == key else None

    def _is_loading(self, key: str, pod: str) -> bool:
        residency = self._pods.state.holders(key).get(pod)
        return residency is not None and residency.is_warming

    def _decide(self, pods: list[PodState], waiting: dict[str, int]) -> None:
        copies = self._seen(pods)
        now_s = self._pods.now_s()
        prices = self._pods.state.prices_at(now_s)
        view = CopiesView(
            copies, [pod.memory_bytes or inf for pod in pods],
            {key: prices.size_bytes(key) for key in sorted(self._models)}, waiting,
        )  # fmt: skip
        self._state, changes = reactive(self._state, view, now_s, self._params)
        kept = [each for at, each in enumerate(self._copies) if at not in changes.removed]
        for key, device in changes.added:
            spec = self._spec(key)
            if spec is not None:
                kept.append((key, pods[device].name))
                self._preloads.want(
                    self._owner, pods[device], spec, due_s=now_s, is_predicted=False
                )
        self._copies = kept
        self._preloads.withdraw(self._owner, {(pod, key) for key, pod in kept})
