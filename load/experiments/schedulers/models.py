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
class Profile:
    """One model on one machine."""

    name: str
    infer_s: float
    size_mb: float

    @property
    def load_s(self) -> float:
        """Time of a load."""
        return self.size_mb * 8 / _MBIT_PER_S


PROFILES: Final = (
    Profile("MobileNet-V1", 0.01170, 16.9),
    Profile("SqueezeNet", 0.00931, 0.5),
    Profile("VGG-19", 0.05927, 549),
    Profile("DenseNet-169", 0.07458, 55),
    Profile("Whisper", 0.50674, 1500),
    Profile("Resnet18", 0.02196, 135),
    Profile("VGG16", 0.03880, 528),
    Profile("VGG-16", 0.05672, 528),
    Profile("Inception-ResNet-v2", 0.04525, 215),
)
