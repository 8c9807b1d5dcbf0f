"""Every figure that the paper does not give.

Fixed before policies were compared. "Chosen" marks what has no source. Times in seconds, sizes
in bytes.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from workflows.plan.costs import Links, TransferCosts

GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model on one device. Chosen but for GenTD26's, near public sizes in 16 bits."""

    size_bytes: float
    first_s: float
    """Time of a batch of one."""
    further_s: float
    """Of each further item; fig. 2: batches of Llama 2 reach 8 times the throughput."""
    max_batch: int
    output_bytes: float
    load_s: float | None = None
    """Measured; None: by size, from host memory."""

    def batch_s(self, size: int) -> float:
        return self.first_s + self.further_s * (size - 1)


CARDS: Final = 26
"""Section 1."""

# GenTD26. From the trace (Lin et al., SoCC '25): requests, seconds and shares of LoRAs by base
# model, and load times. Chosen: sizes, which model has which load time, the LoRAs of each.


@dataclass(frozen=True, slots=True)
class BaseFigures:
    requests: int
    """That succeeded, in 23 days."""
    first_s: float
    """Median time of such a request. It may contain loads."""
    lora_share: float
    """Of requests with a LoRA or more."""


BASES: Final = {
    "M0000": BaseFigures(1144, 23.0, 0.008), "M0001": BaseFigures(3978, 40.0, 0.315),
    "M0002": BaseFigures(8229, 18.0, 0.001), "M0003": BaseFigures(1951, 69.0, 0.966),
    "M0004": BaseFigures(2506, 21.0, 0.083), "M0005": BaseFigures(189, 24.0, 0.095),
    "M0006": BaseFigures(712, 22.0, 0.058), "M0007": BaseFigures(140, 24.0, 0.121),
    "M0010": BaseFigures(2113, 21.0, 0.161), "M0011": BaseFigures(752, 41.0, 0.0),
    "M0012": BaseFigures(199, 19.0, 0.266), "M0014": BaseFigures(576, 22.0, 0.0),
    "M0015": BaseFigures(182, 23.5, 0.148), "M0016": BaseFigures(718, 22.0, 0.006),
    "M0019": BaseFigures(112, 24.5, 0.054), "M0026": BaseFigures(957, 21.0, 0.061),
    "M0027": BaseFigures(232, 23.0, 0.108), "M0054": BaseFigures(105, 31.0, 0.914),
}  # fmt: skip
"""Those with 100 requests or more."""
OTHER_BASES: Final = BaseFigures(1597, 22.0, 0.195)
"""All others together."""
BASE_NAMES: Final = ("", *(f"M{number:04}" for number in range(86)))
"""The trace's 87 models, one of which has no name."""
LORAS_OF_REQUEST: Final = {1: 4071, 2: 246, 3: 35, 4: 3, 6: 4}
"""Requests by number of LoRAs, of those with any."""
LORAS: Final = 6
"""Of each base model, the first ones wanted more often. The trace has numbers only; chosen."""
FURTHER_IMAGE: Final = 0.07
"""Of the first one's time: medians of requests for 1 and 8 images are 20 and 30 s."""
BASE_LOADS_S: Final = (1.7, 2.5, 2.7, 2.8, 3.0, 3.3, 4.7, 18.8, 20.8, 22.1, 23.4, 25.3, 30.1, 34.5,
                       36.2, 37.6, 39.1, 40.9, 43.4, 48.7)  # fmt: skip
LORA_LOADS_S: Final = (0.9, 1.6, 3.0, 3.3, 3.5, 3.7, 3.8, 4.0, 4.1, 4.3, 4.5, 4.6, 4.8, 5.0, 5.2,
                       5.4, 5.6, 5.9, 6.4, 7.4)  # fmt: skip
"""Quantiles of the measured times, 0.025 to 0.975: models get one each, in turn of a fixed
shuffle, since the trace does not say which model was loaded."""


def base_figures(name: str) -> BaseFigures:
    return BASES.get(name, OTHER_BASES)


def base_model(name: str) -> str:
    return f"base-{name or 'unnamed'}"


def lora_models(name: str) -> list[str]:
    return [f"{base_model(name)}-lora-{number}" for number in range(LORAS)]


def _shuffled(seconds: Sequence[float], count: int) -> list[float]:
    """As many of these as asked for, each as often as all others."""
    found = [seconds[number % len(seconds)] for number in range(count)]
    random.Random(26).shuffle(found)
    return found


def _gentd26_models() -> dict[str, ModelFigures]:
    """SDXL's size, and a LoRA's for it; a LoRA's step hands out its weights."""
    found = {"prompt-encoder": ModelFigures(0.25 * GB, 0.03, 0.005, 32, 1e6)}
    loads_s = _shuffled(BASE_LOADS_S, len(BASE_NAMES))
    for name, load_s in zip(BASE_NAMES, loads_s, strict=True):
        first_s = base_figures(name).first_s
        found[base_model(name)] = ModelFigures(
            6.9 * GB, first_s, FURTHER_IMAGE * first_s, 8, 1e6, load_s
        )
    names = [lora for name in BASE_NAMES for lora in lora_models(name)]
    for lora, load_s in zip(names, _shuffled(LORA_LOADS_S, len(names)), strict=True):
        found[lora] = ModelFigures(0.2 * GB, 0.05, 0.0, 8, 0.2 * GB, load_s)
    return found


GENTD26_MODELS: Final = _gentd26_models()
MODELS: Final = {
    "gill-encoder": ModelFigures(0.6 * GB, 0.03, 0.01, 32, 2e6),
    "gill-language": ModelFigures(13.3 * GB, 0.9, 0.06, 16, 2e6),
    "gill-diffusion": ModelFigures(4.3 * GB, 1.6, 0.8, 8, 1e6),
    "language": ModelFigures(13.5 * GB, 0.8, 0.06, 16, 1e4),
    **{f"card-{number:02}": ModelFigures(2.6 * GB, 0.4, 0.04, 16, 1e4) for number in range(CARDS)},
    **GENTD26_MODELS,
}
HOST_BYTES_PER_S: Final = 12 * GB
"""Host to device, PCIe Gen4, chosen: all models are in host memory (section 5.4)."""
LOAD_FIXED_S: Final = 0.2
"""Chosen."""


def load_seconds(model: str, bytes_per_s: float = HOST_BYTES_PER_S) -> float:
    """As measured, else from host memory to a device."""
    figures = MODELS[model]
    if figures.load_s is not None:
        return figures.load_s
    return LOAD_FIXED_S + figures.size_bytes / bytes_per_s


LINKS: Final = Links(
    sent=TransferCosts(0.0002, 100 * GB),
    shared_memory=TransferCosts(0.0002, 100 * GB),
    raw_bytes=TransferCosts(0.0005, 10 * GB),
)
"""NVLink and a fast network, chosen; figure 11 uses one machine of eight devices. By size
and node an output takes the tier that a pod's would."""
DEVICES: Final = 8
DEVICES_PER_NODE: Final = 8
"""Section 8."""
MEMORY_BYTES: Final = {"gill": 14.5 * GB, "knowledge-card": 30 * GB, "debate": 14 * GB,
                       "mix": 30 * GB, "gentd26": 16 * GB}  # fmt: skip
"""Chosen: less than all models of the application need, at least the largest of them."""
LOAD_SHARE: Final = 0.5
"""Share of the time for which devices would be busy with batches of one. Chosen."""

# GILL: the share of requests by their number of images, and of those that ask for one. Tuned on
# markov-prefix's accuracy alone (figure 12: up to 94 %).
IMAGES: Final = {0: 0.03, 1: 0.95, 2: 0.02}
ASKS_IMAGE: Final = 0.9
# DEBATE: agents, and the probability that all agree at the end of a round.
AGENTS: Final = 3
AGREES: Final = (0.12, 0.82, 0.82, 1.0)
"""Tuned on markov-prefix's accuracy alone, too."""
# KNOWLEDGECARD: cards are equally likely (MMLU has as many questions of most subjects), so that
# markov-prefix knows three of four steps (76 %); a word of the prompt gives the card away.
WORD_IS_TRUE: Final = 0.75
