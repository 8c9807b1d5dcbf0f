"""The nine models of Blinowski et al. 2024: what one request and one load take.

Facts of tiger-simulator (github.com/technical-tigers/tiger-simulator at 5870cfdd, MIT, (c) 2024
Blinowski, Mrozicki, Potrzebowski, Wasowski): latencies on c5.18xlarge, sizes, and the rule that a
load takes size x 8 / 4096 Mbit/s wherever it starts. Its VGG16 and VGG-16 are two names with
different latencies; Stable diffusion v2 of the thesis's list has neither latency nor size there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MBIT_PER_S: Final = 4096.0


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """One model on one machine."""

    name: str
    infer_s: float
    size_mb: float

    @property
    def load_s(self) -> float:
        """Time of a load."""
        return self.size_mb * 8 / _MBIT_PER_S


PROFILES: Final = (
    ModelTimes("MobileNet-V1", 0.01170, 16.9),
    ModelTimes("SqueezeNet", 0.00931, 0.5),
    ModelTimes("VGG-19", 0.05927, 549),
    ModelTimes("DenseNet-169", 0.07458, 55),
    ModelTimes("Whisper", 0.50674, 1500),
    ModelTimes("Resnet18", 0.02196, 135),
    ModelTimes("VGG16", 0.03880, 528),
    ModelTimes("VGG-16", 0.05672, 528),
    ModelTimes("Inception-ResNet-v2", 0.04525, 215),
)
