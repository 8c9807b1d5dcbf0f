"""The three T5 models of Liu 2025, section 6.2, with the thesis's times and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from research.demo import SIMPLE_REQUESTS, mean_s
from research.experiments.harness.experiment import Settings
from research.experiments.harness.published_figures import absent_note, published_figures
from research.experiments.liu.simulated import ModelTimings

BEFORE: Final = "random"
"""SigmaOS's default scheduler: any machine, regardless of its models."""
AFTER: Final = "colocation"
THESIS_FILE: Final = "sigmaos_results.csv"
ABSENT: Final = absent_note(THESIS_FILE)


@dataclass(frozen=True, slots=True)
class T5Size:
    """One T5 model with the thesis's times."""

    model: str
    weights_mb: float
    """Four bytes per parameter of the published model."""
    times: ModelTimings
    break_even_requests: int
    """Section 6.3: the time of 7 additional cold starts, divided by the threshold of 0.01 s."""
    cold_before: int
    """Id of the figure in `sigmaos_results.csv`, as are the fields below; 0: there is none."""
    total_before: int = 0
    total_after: int = 0
    many_before: int = 0
    many_after: int = 0
    gain: int = 0
    inference: int = 0


SIZES: Final = (
    T5Size("t5-small", 242, ModelTimings(3.0, 1.0), 2_100, cold_before=29, total_before=22,
           total_after=23, many_before=39, many_after=38, inference=28),
    T5Size("t5-base", 892, ModelTimings(6.0, 3.7), 4_200, cold_before=30),
    T5Size("t5-large", 2951, ModelTimings(17.0, 12.2), 11_900, cold_before=31, gain=24),
)  # fmt: skip
"""Cold starts: section 6.3. Inference of T5-small: section 6.2, about 1 s. The text does not give
the inference times of the others; they are in proportion to the weights (242, 892, 2951 MB)."""


LARGEST: Final = ("t5-3b", 11_406)
"""In the thesis only: model, and megabytes of its weights."""
LARGEST_LOAD: Final = 16
"""Id of its cold start in `sigmaos_results.csv`."""


@dataclass(frozen=True, slots=True)
class SizeTask:
    """One run of sequential requests."""

    size: T5Size
    policy: str
    seed: int
    requests: int = SIMPLE_REQUESTS


def thesis_figures(settings: Settings) -> Mapping[int, float]:
    """The thesis's figures by number. Raises ExperimentError."""
    return published_figures(settings, THESIS_FILE)


def count_spread(counts: Sequence[int]) -> str | None:
    """Mean, lowest and highest; one number if all are equal."""
    if not counts:
        return None
    if min(counts) == max(counts):
        return str(counts[0])
    return f"{mean_s(counts):.1f} ({min(counts)} to {max(counts)})"
