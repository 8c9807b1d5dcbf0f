"""Every figure that the paper does not give.

Fixed before policies were compared, but for RECENT_S and MINUTES, set after first results. "Chosen"
marks what has no source. Times in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from workflows.scheduling.transfers import Links, TransferCosts

GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model on one device. All chosen, near public sizes of such models in 16 bits."""

    size_bytes: float
    first_s: float
    """Time of a batch of one."""
    further_s: float
    """Of each further item; fig. 2: batches of Llama 2 reach 8 times the throughput."""
    max_batch: int
    output_bytes: float

    def batch_s(self, size: int) -> float:
        return self.first_s + self.further_s * (size - 1)


CARDS: Final = 26
"""Section 1."""
MODELS: Final = {
    "gill-encoder": ModelFigures(0.6 * GB, 0.03, 0.01, 32, 2e6),
    "gill-language": ModelFigures(13.3 * GB, 0.9, 0.06, 16, 2e6),
    "gill-diffusion": ModelFigures(4.3 * GB, 1.6, 0.8, 8, 1e6),
    "language": ModelFigures(13.5 * GB, 0.8, 0.06, 16, 1e4),
    **{f"card-{number:02}": ModelFigures(2.6 * GB, 0.4, 0.04, 16, 1e4) for number in range(CARDS)},
}
HOST_BYTES_PER_S: Final = 12 * GB
"""Host to device, PCIe Gen4, chosen: all models are in host memory (section 5.4)."""
LOAD_FIXED_S: Final = 0.2
"""Chosen."""


def load_seconds(model: str, bytes_per_s: float = HOST_BYTES_PER_S) -> float:
    """From host memory to a device."""
    return LOAD_FIXED_S + MODELS[model].size_bytes / bytes_per_s


LINKS: Final = Links(
    sent=TransferCosts(0.0002, 100 * GB), shared_memory=TransferCosts(0.0002, 100 * GB),
    raw_bytes=TransferCosts(0.0005, 10 * GB),
)  # fmt: skip
"""NVLink and a fast network, chosen; figure 11 uses one machine of eight devices. By size
and node an output takes the tier that a pod's would."""
RECENT_S: Final = 30.0
"""A model used since then is expected to be used again: its eviction costs its load. Chosen."""
DEVICES: Final = 8
DEVICES_PER_NODE: Final = 8
"""Section 8."""
MEMORY_BYTES: Final = {"gill": 14.5 * GB, "knowledge-card": 30 * GB, "debate": 14 * GB,
                       "mix": 30 * GB}  # fmt: skip
"""Chosen: less than all models of the application need, at least the largest of them."""
LOAD_SHARE: Final = 0.5
"""Share of the time for which devices would be busy with batches of one. Chosen."""
MINUTES: Final = 10
CHANGE_MINUTES: Final = 20
"""Of figure 10, with the change in the middle: the paper's two hours, shortened."""
SEEDS: Final = (11, 12, 13, 14, 15)
"""Others than those on which policies were chosen (1 to 5)."""

# GILL: the share of requests by their number of images, and of those that ask for one. Tuned on
# markov-prefix's accuracy alone (figure 12: up to 94 %).
IMAGES: Final = {0: 0.03, 1: 0.95, 2: 0.02}
ASKS_IMAGE: Final = 0.9
# DEBATE: agents, and the probability that all agree at the end of a round.
AGENTS: Final = 3
AGREES: Final = (0.05, 0.9, 0.9, 1.0)
# KNOWLEDGECARD: cards are equally likely (MMLU has as many questions of most subjects), so that
# markov-prefix knows three of four steps (76 %); a word of the prompt gives the card away.
WORD_IS_TRUE: Final = 0.75
