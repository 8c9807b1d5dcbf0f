"""The declared models and their state here, and the pod's: what V2 tells but inference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from registry.domain.model import ModelName, ModelRecord, ModelSpec, Tier
from registry.domain.pod_state import ANY_COPIES
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.device.worker import DeviceWorker
from runtime.errors import ModelInUse, ModelNotFound, ModelUnknown, PodDraining
from runtime.loading.load_coordinator import LoadCoordinator
from runtime.loading.model_store import ModelStore
from runtime.loading.processors import Processors
from runtime.registry_agent import RegistryAgent
from runtime.serving.in_flight import InFlightRequests
from runtime.threads import RequestThreads


class ModelCatalog:
    """Finds models in the watch's copy first, then in the registry, which may be newer."""

    def __init__(self, watch: ClusterWatch, registry: Registry) -> None:
        self.watch = watch
        self._registry = registry

    async def find(self, name: ModelName, generation: str | None) -> ModelSpec:
        """The requested generation, else the one that serves now.

        Raises ModelNotFound, ModelUnknown.
        """
        record = self.watch.state.models.get(name)
        spec = pick_generation(record, generation)
        if spec is not None:
            return spec
        try:
            newer = await self._registry.get_model(name)
        except RegistryUnavailable as error:
            if record is None:
                raise ModelUnknown(
                    f"whether model {name} is declared is unknown: {error}"
                ) from None
            newer = None
        record = newer or record
        spec = pick_generation(record, generation) or pick_generation(record, None)
        if spec is None:
            raise ModelNotFound(f"model {name} is not declared")
        return spec

    async def is_pod(self, address: str | None) -> bool:
        """Whether a pod of the pool has this address: requests are forwarded nowhere else.

        A new pod can be in the gateway's copy before it is in this pod's copy. An unknown address
        costs little: a read of one key, and concurrent reads, at most one per slot, share a call.
        """
        if address is None:
            return False
        if any(pod.address == address for pod in self.watch.state.pods.values()):
            return True
        try:
            return await self._registry.has_pod_at(address)
        except RegistryUnavailable:
            return False

    def names(self) -> list[ModelName]:
        return sorted(self.watch.state.models)

    def record(self, name: ModelName) -> ModelRecord | None:
        return self.watch.state.models.get(name)


def pick_generation(record: ModelRecord | None, generation: str | None) -> ModelSpec | None:
    """The requested generation of a record; None requests the one that serves now."""
    if record is None:
        return None
    if generation is None:
        return record.serving
    return next((spec for spec in record.generations if spec.generation == generation), None)


UNLOAD_TIMEOUT_S = 30.0
SERVER_NAME = "pilotlight"
EXTENSIONS = ("binary_tensor_data", "model_repository", "model_repository_extension")
"""The repository extension has two names, Triton's and KServe's."""


def server_version() -> str:
    """The installed version; `none` if the package is not installed."""
    try:
        return version(SERVER_NAME)
    except PackageNotFoundError:
        return "none"


class ModelState(StrEnum):
    """The states of the repository extension that a pod reports."""

    READY = "READY"
    LOADING = "LOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One declared model; `version` is its generation, `reason` its last load failure."""

    name: str
    version: str
    state: ModelState
    reason: str


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A model's inputs and outputs, in V2's form."""

    name: str
    versions: Sequence[str]
    platform: str
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    answers_openai: bool
    """Whether one of OpenAI's endpoints is for such a model; for the gateway's list of them."""


@dataclass(frozen=True, slots=True)
class Repository:
    """The declared models and their state in this pod. Models are named as in a URL's path."""

    catalog: ModelCatalog
    coordinator: LoadCoordinator
    store: ModelStore
    processors: Processors
    in_flight: InFlightRequests

    def names(self) -> list[str]:
        return [name.path_segment for name in self.catalog.names()]

    async def is_ready(self, segment: str, version: str = "") -> bool:
        """Whether the model is on this pod's device; raises ModelNotFound."""
        if version:
            return self.store.holds((await self.find(segment, version)).key)
        keys = await self._declared_keys(segment)
        return any(self.store.holds(key) for key in keys)

    async def find(self, segment: str, version: str) -> ModelSpec:
        """The generation named `version`, the served one if it is empty; raises ModelNotFound."""
        name = ModelName.from_path_segment(segment)
        spec = await self.catalog.find(name, version or None)
        if version not in {"", spec.generation}:
            raise ModelNotFound(
                f"model {name} has no version {version[:40]!r}; it has {spec.generation!r}"
            )
        return spec

    async def metadata(self, segment: str, version: str = "") -> ModelMetadata:
        """A model's inputs and outputs; needs its small files only. Raises LoadFailed."""
        spec = await self.find(segment, version)
        processor = await self.processors.get(spec)
        inputs = await asyncio.to_thread(processor.input_types)  # some are read from the file
        return ModelMetadata(
            name=segment,
            versions=(spec.generation,),
            platform=processor.platform,
            inputs=inputs,
            outputs=processor.output_types(),
            answers_openai=processor.answers_openai,
        )

    async def check(self, segment: str, version: str) -> None:
        """Whether the model's files fit together, as far as they tell before a load.

        Raises ModelNotFound, LoadFailed.
        """
        await self.coordinator.check(await self.find(segment, version))

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        entries = [self._entry(name) for name in self.catalog.names()]
        return [each for each in entries if not ready_only or each.state is ModelState.READY]

    def _entry(self, name: ModelName) -> IndexEntry:
        record = self.catalog.record(name)
        keys = self._keys(name)
        state = ModelState.UNAVAILABLE
        if any(self.store.holds(key) for key in keys):
            state = ModelState.READY
        elif any(self.coordinator.is_loading(key) for key in keys):
            state = ModelState.LOADING
        failure = record.failure if record is not None else None
        return IndexEntry(
            name=name.path_segment,
            version=record.spec.generation if record is not None else "",
            state=state,
            reason=failure.message if failure is not None else "",
        )

    async def load(
        self,
        segment: str,
        tier: Tier = Tier.DEVICE,
        max_other_copies: int = ANY_COPIES,
        *,
        is_withdrawable: bool = False,
        due_in_s: float | None = None,
    ) -> None:
        """Load a model to the device, or to the given tier; see `LoadCoordinator.preload`.

        Raises ModelNotFound, LoadFailed, LoadRefused, LoadCancelled, HostTierRefused, PodDraining.
        """
        if self.in_flight.is_draining:
            raise PodDraining("the pod is draining and loads no models")
        spec = await self.find(segment, "")
        await self.coordinator.preload(
            spec, max_other_copies, tier, is_withdrawable=is_withdrawable, due_in_s=due_in_s
        )

    async def unload(self, segment: str) -> None:
        """Unload a model from the device once no request uses it; its files stay on disk.

        A load in progress is cancelled: its requests get LoadCancelled, its memory is released.

        Raises:
            ModelNotFound: the model is neither declared nor loaded.
            ModelInUse: requests kept using it for UNLOAD_TIMEOUT_S.
        """
        name = ModelName.from_path_segment(segment)
        keys = await self._declared_keys(segment)
        try:
            async with asyncio.timeout(UNLOAD_TIMEOUT_S):
                for key in keys:
                    await self.coordinator.cancel(key, f"{name} was unloaded")
                    self.store.retire(key, "unload")
                    await self.store.wait_removed(key)
        except TimeoutError as error:
            for key in keys:
                self.store.keep(key, "unload")
            raise ModelInUse(f"{name} is still in use after {UNLOAD_TIMEOUT_S} s") from error

    async def _declared_keys(self, segment: str) -> list[str]:
        """As `_keys`; of a model that the watch's copy lacks, the key of the served generation.

        Raises ModelNotFound: the model is neither declared nor on the device; ModelUnknown.
        """
        keys = self._keys(ModelName.from_path_segment(segment))
        return keys or [(await self.find(segment, "")).key]

    def _keys(self, name: ModelName) -> list[str]:
        """Keys of all generations of a model that are declared or on the device."""
        prefix = f"{name}@"
        keys = [key for key in self.store.by_key if key.startswith(prefix)]
        record = self.catalog.record(name)
        if record is not None:
            keys += [spec.key for spec in record.generations]
        return sorted(set(keys))


@dataclass(frozen=True, slots=True)
class Health:
    """Ready: registered, not draining and alive; a pod for one model also needs its model loaded.

    Alive: the device and its thread work, and a request's thread; otherwise the pod has to be
    restarted.
    """

    agent: RegistryAgent
    in_flight: InFlightRequests
    device: DeviceWorker
    threads: RequestThreads
    has_model: Callable[[], bool] = lambda: True
    """Whether the only model of a pod for one is loaded."""

    @property
    def is_ready(self) -> bool:
        serves = self.agent.is_registered and not self.in_flight.is_draining
        return serves and self.has_model() and self.is_live

    @property
    def is_live(self) -> bool:
        return self.device.is_alive and not self.threads.are_stuck
