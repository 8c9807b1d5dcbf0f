"""Estimated durations of loads, stages and network hops: medians of the latest measurements.

Pods measure, the registry distributes the samples, policies read medians. Priors replace missing
measurements and are marked, since a request is never rejected for its deadline because of a prior.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW: Final = 32
"""Samples kept per model and measure: few, so that medians follow a change within seconds."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An expected duration, and whether it was measured or is a prior."""

    seconds: float
    is_measured: bool


@dataclass(frozen=True, slots=True)
class Priors:
    """Assumptions about a model without measurements. Times in seconds."""

    load_s: float = 3.0
    """Liu 2025, section 6.3: a T5-small cold start costs about 3 s."""
    infer_s: float = 0.5
    preprocess_s: float = 0.001
    postprocess_s: float = 0.001
    network_s: float = 0.002
    assets_s: float = 0.25
    """Fetching and reading a tokenizer: measured at 0.10-0.25 s."""
    load_bytes: float = 250e6
    """Size of a model before its first load, for pods with a known link rate."""


PRIORS: Final = Priors()


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A model's stage times in seconds, and whether all of them were measured."""

    infer_s: float
    share_s: float
    """Device time per request; less than `infer_s` where requests share batches."""
    preprocess_s: float
    """With `postprocess_s` Liu's T_P."""
    postprocess_s: float
    """Time for which a slot is held after inference."""
    is_measured: bool

    @property
    def hold_s(self) -> float:
        """How long a request holds its slot without any waiting: T_I + T_P."""
        return self.infer_s + self.preprocess_s + self.postprocess_s


_BELOW_DEVICE: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)
_FROM_AND_BELOW: Final = {
    tier: tuple((f"load:{each}", each) for each in _BELOW_DEVICE[at:])
    for at, tier in enumerate(_BELOW_DEVICE)
}
"""Measures of loads that start at a tier or a slower one."""


class ModelEstimates:
    """The latest samples of one model generation, with cached medians."""

    __slots__ = ("_medians", "_samples", "_stages")

    def __init__(self) -> None:
        self._samples: dict[str, deque[float]] = {}
        self._medians: dict[str, Estimate] = {}
        """Computed on demand: most models get samples more often than they are read."""
        self._stages: StageTimes | None = None

    def add(self, measure: str, values_s: Iterable[float]) -> None:
        samples = self._samples.get(measure)
        if samples is None:
            samples = self._samples[measure] = deque(maxlen=WINDOW)
        samples.extend(values_s)
        self._medians.pop(measure, None)
        self._stages = None

    @property
    def stages(self) -> StageTimes:
        if self._stages is None:
            infer, before, after = self.infer, self.preprocess, self.postprocess
            self._stages = StageTimes(
                infer_s=infer.seconds,
                share_s=self.share.seconds,
                preprocess_s=before.seconds,
                postprocess_s=after.seconds,
                is_measured=infer.is_measured and before.is_measured and after.is_measured,
            )
        return self._stages

    def get(self, measure: str) -> Estimate | None:
        """The median of a measure; None without samples."""
        known = self._medians.get(measure)
        if known is None and (samples := self._samples.get(measure)):
            known = self._medians[measure] = Estimate(median(samples), is_measured=True)
        return known

    def load_from(self, tier: Tier, link_bytes_per_s: float | None) -> Estimate:
        """Time of a load from `tier`; where unmeasured, a slower tier's time is the upper bound."""
        for measure, candidate in _FROM_AND_BELOW.get(tier, ()):
            known = self.get(measure)
            if known is not None:
                return known if candidate == tier else Estimate(known.seconds, is_measured=False)
        if link_bytes_per_s and tier == Tier.REMOTE:
            return Estimate(PRIORS.load_bytes / link_bytes_per_s, is_measured=False)
        return Estimate(PRIORS.load_s, is_measured=False)

    @property
    def infer(self) -> Estimate:
        """Time of one inference: that of the whole batch."""
        return self.get("infer") or Estimate(PRIORS.infer_s, is_measured=False)

    @property
    def share(self) -> Estimate:
        """Device time per request: its batch's time, proportional to its share of the items."""
        return self.get("share") or self.infer

    @property
    def preprocess(self) -> Estimate:
        return self.get("preprocess") or Estimate(PRIORS.preprocess_s, is_measured=False)

    @property
    def postprocess(self) -> Estimate:
        return self.get("postprocess") or Estimate(PRIORS.postprocess_s, is_measured=False)

    @property
    def network(self) -> Estimate:
        """Time of a request between its entry pod and another predict pod."""
        return self.get("network") or Estimate(PRIORS.network_s, is_measured=False)

    @property
    def assets(self) -> Estimate:
        """Time an entry pod needs to load the model's small files, once."""
        return self.get("assets") or Estimate(PRIORS.assets_s, is_measured=False)


UNMEASURED: Final = ModelEstimates()
