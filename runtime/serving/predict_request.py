"""A predict request in progress: its headers, its stage times, its response's provenance."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from registry.domain.pod import Stage
from runtime.metrics import observe_stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.inference_protocol.bodies import EncodedBody
    from registry.domain.model import ModelSpec
    from runtime.registration.measurements import Measurements
    from runtime.wire.request_head import RequestHead


@dataclass(frozen=True, slots=True)
class PredictResponse:
    body: EncodedBody
    predict_pod: str
    start: str
    stages: Mapping[Stage, float]
    """Seconds per stage."""
    batch: str = ""
    """Number of its inference and the items in it, see `InferenceResult`; empty: not known."""


@dataclass(slots=True)
class PredictRequest:
    """One request. Mutable: owned by the task that serves it."""

    head: RequestHead
    spec: ModelSpec
    predict_pod: str
    measurements: Measurements
    is_small: bool = False
    """Whether its body has at most `QUICK_BYTES`, with all of its tensors."""
    start: str = "warm"
    stages: dict[Stage, float] = field(default_factory=dict)
    batch: str = ""

    async def simulate(self, stage: Stage) -> float:
        """Sleep as the request's simulated work asks for; returns the seconds."""
        seconds = self.head.simulated_work.get(stage, 0.0)
        if seconds:
            await asyncio.sleep(seconds)
        return seconds

    def response(self, body: EncodedBody) -> PredictResponse:
        return PredictResponse(body, self.predict_pod, self.start, self.stages, self.batch)

    def record(self, stage: Stage, seconds: float, *, sample_s: float | None = None) -> None:
        """Record a stage's time; `sample_s` is the sample for the registry's estimates."""
        self.stages[stage] = seconds
        observe_stage(stage, self.spec.name.path_segment, seconds)
        if sample_s is not None and stage is Stage.INFER:
            self.measurements.add_inference(self.spec.key, sample_s, self.head.body_bytes)
        elif sample_s is not None:
            self.measurements.add(self.spec.key, str(stage), sample_s)
