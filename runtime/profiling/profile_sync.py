"""Exchanges profiles with the registry: loads stored ones, publishes times of live batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from registry.domain.profile import Profile
    from registry.redis.watch import ClusterWatch
    from runtime.device.batch_times import BatchTimes
    from runtime.registration.registry_agent import RegistryAgent


class ProfileSync:
    """Synchronises the pod's batch times with the pool's profiles."""

    def __init__(
        self,
        times: BatchTimes,
        *,
        watch: ClusterWatch,
        agent: RegistryAgent,
        device: str,
        interval_s: float,
    ) -> None:
        self.device = device
        """Profiles of other devices are ignored."""
        self._times = times
        self._watch = watch
        self._agent = agent
        self._interval_s = interval_s
        self._known: dict[str, Profile] = {}
        self._seen_version = -1
        watch.subscribe(self._refresh)

    def _refresh(self) -> None:
        """Load new and changed profiles from the registry's copy."""
        state = self._watch.state
        if state.profiles_version == self._seen_version:
            return
        self._seen_version = state.profiles_version
        for profile in state.profiles.values():
            if profile.device == self.device and self._known.get(profile.key) != profile:
                self._known[profile.key] = profile
                self._times.use_profile(profile)

    async def store(self, profile: Profile) -> bool:
        """Use a profile measured here, and store it; False if it could not be stored."""
        self._times.forget(profile.key)
        self._times.use_profile(profile)
        self._known[profile.key] = profile
        return await self._agent.store_profile(profile)

    async def run(self) -> None:
        """Publish times of live batches until cancelled; forget models that are withdrawn."""
        while True:
            await asyncio.sleep(self._interval_s)
            for profile in self._times.take_updates(self.device):
                self._known[profile.key] = profile
                await self._agent.store_profile(profile)
            for key in self._times.keys() - self._declared_keys():
                self._times.forget(key)
                self._known.pop(key, None)

    def _declared_keys(self) -> set[str]:
        records = self._watch.state.models.values()
        return {
            spec.key
            for record in records
            for spec in (record.spec, record.previous)
            if spec is not None
        }
