"""Exchanges profiles with the registry, and reads the batch limits of the autoscaler's plan."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from registry.domain.model import ModelName

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState
    from registry.domain.pod import PodInfo
    from registry.domain.profile import Profile
    from registry.redis.watch import ClusterWatch
    from runtime.device.batch_times import BatchTimes
    from runtime.registration.registry_agent import RegistryAgent


class ProfileSync:
    def __init__(
        self,
        times: BatchTimes,
        *,
        watch: ClusterWatch,
        agent: RegistryAgent,
        info: PodInfo,
        interval_s: float,
    ) -> None:
        self.device = info.device
        self.product = info.accelerator.product or info.device
        """Profiles of other products are ignored; older versions wrote the device in its place."""
        self._times = times
        self._watch = watch
        self._agent = agent
        self._interval_s = interval_s
        self._known: dict[str, Profile] = {}
        self._seen_version = -1
        self._kind = info.kind
        self._place = info.place
        self._is_placed = bool(info.placed_model)
        self._plan: tuple[object, ...] = ()
        """The objects that the batch caps were read from."""
        watch.subscribe(self._refresh)

    def _refresh(self) -> None:
        """Load the plan, and new and changed profiles, from the registry's copy."""
        state = self._watch.state
        plan = (state.wanted, state.placement, state.models_version)
        if plan != self._plan:
            self._plan = plan
            self._times.planned_rows = self._planned_rows(state)
        if state.profiles_version == self._seen_version:
            return
        self._seen_version = state.profiles_version
        for stored in state.profiles.values():
            profile = stored.get(self.product) or stored.get("")
            if profile is None or profile.product not in (self.product, self.device):
                continue
            if self._known.get(profile.key) != profile:
                self._known[profile.key] = profile
                self._times.use_profile(profile)

    def _planned_rows(self, state: ClusterState) -> dict[str, int]:
        """Largest batches by model key: of the placed replica, else of pods of this kind."""
        caps = state.wanted.batch_caps(self._kind) if state.wanted else {}
        placed = state.placement.pod(self._place) if state.placement else None
        if placed is not None:
            record = state.models.get(ModelName.parse(placed.replica.model))
            for spec in record.generations if record else ():
                caps[spec.key] = placed.replica.batch_size
        return caps

    async def store(self, profile: Profile) -> bool:
        """Use a profile measured here, and store it; False if it could not be stored."""
        self._times.forget(profile.key)
        self._times.use_profile(profile)
        self._known[profile.key] = profile
        return await self._agent.store_profile(profile)

    async def run(self) -> None:
        """Publish times of live batches until cancelled; drop models no longer declared."""
        while True:
            await asyncio.sleep(self._interval_s)
            for profile in self._times.take_updates(self.product):
                if self._is_placed:  # profiles are of a model alone; neighbours slow this one down
                    continue
                if (known := self._known.get(profile.key)) is not None:
                    profile = replace(
                        profile, shares=known.shares, pairs=known.pairs, igniter=known.igniter
                    )
                self._known[profile.key] = profile
                await self._agent.store_profile(profile)
            for key in self._times.keys() - self._watch.state.declared_keys():
                self._times.forget(key)
                self._known.pop(key, None)
