"""A model that another process infers, without the device's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.loading.served_model import ServedModel

if TYPE_CHECKING:
    from registry.domain.model import ModelPolicy


class ModelElsewhere(ServedModel):
    async def warm_up(self) -> None:
        """Nothing: the process has said that it has the model, and no request's data is known."""

    def _limit_s(self, policy: ModelPolicy) -> float:
        """Time limit of an inference."""
        return policy.max_infer_s or self._device.timeout_s
