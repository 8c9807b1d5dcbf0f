"""The declared models, and the generation of one that a request needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.model import ModelName, ModelRecord, ModelSpec
from registry.errors import RegistryUnavailable
from runtime.errors import ModelNotFound, ModelUnknown

if TYPE_CHECKING:
    from registry.redis.client import Registry
    from registry.redis.watch import ClusterWatch


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
