"""Profiles between this pod and the registry: stored ones in, times of live batches out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from registry.domain.profile import Profile
    from registry.redis.watch import ClusterWatch
    from runtime.device.batch_times import BatchTimes
    from runtime.registration.registry_agent import RegistryAgent


class Profiles:
    """Keeps the batcher's times in line with what the pool knows."""

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
        """Its kind: times of other kinds say nothing here."""
        self._times = times
        self._watch = watch
        self._agent = agent
        self._interval_s = interval_s
        self._adopted: dict[str, Profile] = {}
        self._seen_version = -1
        watch.subscribe(self._look)

    def _look(self) -> None:
        """Take in what is new among the stored profiles."""
        state = self._watch.state
        if state.profiles_version == self._seen_version:
            return
        self._seen_version = state.profiles_version
        for profile in state.profiles.values():
            if profile.device == self.device and self._adopted.get(profile.key) != profile:
                self._adopted[profile.key] = profile
                self._times.adopt(profile)

    async def keep(self, profile: Profile) -> bool:
        """Use a profile that was taken here and store it; False: it could not be stored."""
        self._times.forget(profile.key)
        self._times.adopt(profile)
        self._adopted[profile.key] = profile
        return await self._agent.store_profile(profile)

    async def run(self) -> None:
        """Report what live batches took until cancelled; forget what is not declared any more."""
        while True:
            await asyncio.sleep(self._interval_s)
            for profile in self._times.take_updates(self.device):
                self._adopted[profile.key] = profile
                await self._agent.store_profile(profile)
            for key in self._times.keys() - self._declared_keys():
                self._times.forget(key)
                self._adopted.pop(key, None)

    def _declared_keys(self) -> set[str]:
        records = self._watch.state.models.values()
        return {
            spec.key
            for record in records
            for spec in (record.spec, record.previous)
            if spec is not None
        }
