"""In-process copy of a pool's state, which routing policies and planners read.

Only its owner (the watch, or the simulator) writes it. It may change at every await of a reader.
Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from registry.cost import ArrivalRates
from registry.domain.action_log import WantedPods
from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.demand import ExpectedRates
from registry.domain.estimates import Measurements, ModelEstimates
from registry.domain.eviction_prices import EvictionPrices
from registry.domain.free_pods import FreePods
from registry.domain.model import ModelName, ModelRecord, name_of_key
from registry.domain.placement import PlacementRecord
from registry.domain.pod_index import PodIndex
from registry.domain.pod_state import PodState
from registry.domain.profile import Profile
from registry.domain.queued_steps import QueuedSteps
from registry.domain.residency_index import Residency, ResidencyIndex

_NO_HOLDERS: Mapping[str, Residency] = {}


class ClusterState:
    """All pods, models, tiers and measurements of a pool."""

    def __init__(self) -> None:
        self.version = 0
        """Registry version up to which changes are applied."""
        self.models_version = 0
        """Grows with every change of `models`, `applications` and `accuracies`."""
        self.measurements = Measurements()
        self.pods = PodIndex(self.measurements)
        self.models: dict[ModelName, ModelRecord] = {}
        self.applications: dict[ModelName, ApplicationSpec] = {}
        self.accuracies: dict[ModelName, AccuracyProfile] = {}
        """Of the generation that was profiled last, by model."""
        self.residency = ResidencyIndex(self.pods)
        self.arrivals = ArrivalRates()
        """Of the requests that this process received."""
        self.queue_depths: dict[str, int] = {}
        """Requests queued in this process by model key; models with a queue only."""
        self.eviction_prices = EvictionPrices(
            self.pods, self.residency, self.arrivals, self.queue_depths
        )
        self.profiles: dict[ModelName, dict[str, Profile]] = {}
        """Profiles of the generation that was profiled last, by model and product; the product is
        empty for a profile that an older version of Pilotlight wrote."""
        self.profiles_version = 0
        """Grows with every change of `profiles`."""
        self.wanted: WantedPods | None = None
        """The pods that the autoscaler wants; None before its first decision."""
        self.placement: PlacementRecord | None = None
        """Which models share which accelerators; None: nothing is placed."""
        self.queued_steps: dict[str, QueuedSteps] = {}
        """By pod that has steps of workflows; those of all schedulers."""
        self.policy_memory: dict[str, dict[str, Any]] = {}
        """What routing policies of plug-ins keep: by model key, then by the policy's name."""

    @property
    def has_server(self) -> bool:
        """Whether a pod has a model server, which reads formats without an engine here."""
        return any(pod.info.has_server for pod in self.pods.values())

    def clear(self) -> None:
        """Remove what the registry knows; the versions of models and profiles grow."""
        self.models_version += 1
        self.profiles_version += 1
        self.measurements = Measurements()
        self.pods = PodIndex(self.measurements)
        self.models = {}
        self.applications, self.accuracies = {}, {}
        self.residency = ResidencyIndex(self.pods)
        self.eviction_prices = EvictionPrices(
            self.pods, self.residency, self.arrivals, self.queue_depths
        )
        self.profiles = {}
        self.wanted = self.placement = None
        self.queued_steps = {}

    @property
    def expected_rates(self) -> ExpectedRates:
        """Arrivals that the autoscaler expects; read them with `at`, since they age."""
        return self.eviction_prices.expected_rates

    @expected_rates.setter
    def expected_rates(self, rates: ExpectedRates) -> None:
        self.eviction_prices.expected_rates = rates

    def forget(self, key: str) -> None:
        """Drop what was learned of a model, or a generation of it, that is gone for good."""
        self.measurements.drop(key)
        self.arrivals.drop(key)
        self.policy_memory.pop(key, None)

    def declared_keys(self) -> set[str]:
        """Keys of all generations of the declared models."""
        return {spec.key for record in self.models.values() for spec in record.generations}

    def holders(self, key: str) -> Mapping[str, Residency]:
        """The model's residency by name of pod, for every pod that has some of its files."""
        return self.residency.get(key, _NO_HOLDERS)

    def warm(self, key: str) -> Sequence[PodState]:
        """Accepting pods that hold the model on their device."""
        return self.residency.serving(key).warm

    def free_warm(self, key: str) -> FreePods:
        """Those of `warm` that have a free slot, in order."""
        return self.residency.serving(key).free

    def warming(self, key: str) -> Sequence[PodState]:
        """Accepting pods that load the model to their device."""
        return self.residency.serving(key).warming

    def prices_at(self, now_s: float) -> EvictionPrices:
        """Room and prices of evictions, with the rates of arrival of this second."""
        self.eviction_prices.refresh(now_s)
        return self.eviction_prices

    def measured(self, key: str) -> ModelEstimates:
        """The model's estimates over all kinds of accelerators; for a pod: `PodState.estimates`."""
        return self.measurements.over_kinds()[key]

    def profiles_of(self, key: str) -> list[Profile]:
        """Cost by batch size of this generation of a model, in the order of products."""
        stored = self.profiles.get(name_of_key(key), {})
        found = [each for each in stored.values() if each.key == key]
        return sorted(found, key=lambda profile: profile.product)
