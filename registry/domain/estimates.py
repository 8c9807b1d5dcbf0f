"""Estimated durations of loads, stages and network hops: medians of the latest measurements.

Pods measure, the registry distributes the samples, policies read medians for the pod's kind of
accelerator. Without measurements at that kind an estimate comes from other kinds, else from priors,
and is marked: a request is never rejected for its deadline because of such an estimate.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import inf
from statistics import median
from typing import Final

from registry.domain.model import Tier
from registry.domain.pod import AcceleratorKind

# Measures by size, since estimates that ignore size would refuse small requests because large ones
# were slow: inferences by the request's bytes (gateways) or a batch's rows (pods), transfers of
# steps' outputs between pods by the output's bytes.

MAX_AGE_S: Final = 60.0
"""Measurements older than this refuse no request: what was slow then may be fast now."""
MAX_CLASSES: Final = 16
"""Larger bodies than those of the last class count as of it."""
_SMALLEST_BITS: Final = 10
"""Bodies of up to 1 KiB are one class."""
_BITS_PER_CLASS: Final = 2
"""Each class reaches to four times the size of the one before it."""

_NEW_TOKEN_BYTES: Final = 64
"""A generated token takes about as long as reading 16 tokens of a prompt, of 4 bytes each."""

KEPT_OVER_BYTES: Final = 64 * 1024
"""Larger outputs stay at the pod. Schedulers journal results up to this size, so that they need
their data in any case (`workflows/journal.py`)."""
SHARED_OVER_BYTES: Final = 256 * 1024
"""Smaller tensors cost about as much to map as to send."""
TRANSFERS: Final = "transfers"
"""In place of a model's key, which it cannot be: a transfer depends on no model."""
OUTPUT_BYTES: Final = "output-bytes"
"""Measure of a model: the size of a step's outputs, in bytes."""


def size_class(body_bytes: int) -> int:
    """The class of a body: 0 up to 1 KiB, 1 up to 4 KiB, and so on; 8 up to 64 MiB."""
    extra_bits = max(0, body_bytes - 1).bit_length() - _SMALLEST_BITS
    return min(MAX_CLASSES - 1, -(-extra_bits // _BITS_PER_CLASS)) if extra_bits > 0 else 0


def generation_bytes(body_bytes: int, new_tokens: int) -> int:
    """The size by which a text generation is classed: its body, and what may be generated."""
    return body_bytes + _NEW_TOKEN_BYTES * new_tokens


def class_bytes(of_class: int) -> int:
    """The largest body of a class."""
    return 1 << (_SMALLEST_BITS + _BITS_PER_CLASS * of_class)


def infer_measure(of_class: int) -> str:
    """The measure of inference times of requests of one class."""
    return f"infer:{of_class}"


def is_computed(measure: str) -> bool:
    """Whether a pod of half the speed takes twice as long."""
    return measure.partition(":")[0] in {"infer", "share", "preprocess", "postprocess"}


def seconds_at_size(points: Sequence[tuple[float, float]], size: float) -> float:
    """Time at a size, from (size, seconds) of the sizes that were measured, ascending.

    Linear between two sizes; in proportion below the smallest, the largest one's time above it: the
    least that is to be expected. Without points: 0.
    """
    before_size = before_s = 0.0
    for at_size, at_s in points:
        if size <= at_size:
            part = (size - before_size) / (at_size - before_size)
            return before_s + part * (at_s - before_s)
        before_size, before_s = at_size, at_s
    return before_s


class TransferTier(StrEnum):
    """Also a metric label."""

    SAME_POD = "same-pod"
    """The tensor is used where it is."""
    SHARED_MEMORY = "shared-memory"
    """Another pod's memory on the same node is mapped."""
    RAW_BYTES = "raw-bytes"
    """Another pod sends the bytes."""


def transfer_tier(size_bytes: float, *, shares_memory: bool) -> TransferTier | None:
    """How an output comes to another pod; None: the scheduler sends it, wherever the step runs."""
    if size_bytes <= KEPT_OVER_BYTES:
        return None
    if shares_memory and size_bytes > SHARED_OVER_BYTES:
        return TransferTier.SHARED_MEMORY
    return TransferTier.RAW_BYTES


def transfer_measure(tier: TransferTier, of_class: int) -> str:
    """The measure of the times of transfers of one size class (`registry.domain.estimates`)."""
    return f"{tier}:{of_class}"


WINDOW: Final = 32
"""Samples kept per model and measure: few, so that medians follow a change within seconds."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An expected duration."""

    seconds: float
    is_measured: bool
    """True if measured at this kind of accelerator; False for other kinds and for priors."""


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
    spread_s: float = 0.0
    """`infer_s` less the fastest of the latest inferences: requests of one model differ."""

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
    """The latest samples of one model generation at one kind of accelerator, with cached medians.

    With the kind None there are no own samples: the estimates combine those of all kinds.
    """

    __slots__ = (
        "_at_other_kinds",
        "_fastest_load_s",
        "_kind",
        "_medians",
        "_of_all",
        "_samples",
        "_stages",
        "sampled_s",
    )

    def __init__(
        self,
        kind: AcceleratorKind | None = None,
        at_other_kinds: Callable[[str], Mapping[AcceleratorKind, float]] | None = None,
        of_all: "ModelEstimates | None" = None,
    ) -> None:
        self._kind, self._of_all = kind, of_all
        self._at_other_kinds = at_other_kinds
        """Medians of a measure in seconds, at other kinds of accelerator."""
        self._samples: dict[str, deque[float]] = {}
        self._medians: dict[str, Estimate] = {}
        """Computed on demand: most models get samples more often than they are read."""
        self._stages: dict[int | None, StageTimes] = {}
        """By size class; None: of all."""
        self._fastest_load_s: float | None = None
        self.sampled_s = -inf
        """Time of the latest inference samples."""

    def add(self, measure: str, values_s: Iterable[float], now_s: float = inf) -> None:
        if self is UNMEASURED:
            raise TypeError("UNMEASURED belongs to all models: add to `KindEstimates` instead")
        self._samples.setdefault(measure, deque(maxlen=WINDOW)).extend(values_s)
        if measure == "infer":
            self.sampled_s = now_s
        self.drop_cached(measure)

    def drop_cached(self, measure: str) -> None:
        """Drop the cached values that depend on this measure."""
        self._medians.pop(measure, None)
        self._fastest_load_s = None
        if self._stages:
            self._stages = {}

    def stages_of(self, of_class: int | None) -> StageTimes:
        """Times of requests of a size class (`registry.domain.estimates`); None: of all.

        A class without measurements takes the time that those of the others give for its size.
        """
        found = self._stages.get(of_class)
        if found is None:
            found = self._stages[of_class] = self._compute_stages_of(of_class)
        return found

    def _compute_stages_of(self, of_class: int | None) -> StageTimes:
        stages = self._compute_stages() if of_class is None else self.stages
        if of_class is None or not stages.is_measured:
            return stages
        own = self._samples.get(infer_measure(of_class))
        if own is not None:
            infer_s = median(own)
            spread_s = infer_s - min(own)
        else:
            points = [
                (float(class_bytes(each)), median(samples))
                for each in range(MAX_CLASSES)
                if (samples := self._samples.get(infer_measure(each)))
            ]
            if not points:
                return stages
            infer_s, spread_s = seconds_at_size(points, class_bytes(of_class)), 0.0
        share_s = stages.share_s * infer_s / stages.infer_s if stages.infer_s else infer_s
        return replace(stages, infer_s=infer_s, share_s=share_s, spread_s=spread_s)

    @property
    def stages(self) -> StageTimes:
        """Those of requests of all sizes."""
        return self._stages.get(None) or self.stages_of(None)

    def _compute_stages(self) -> StageTimes:
        infer, before, after = self.infer, self.get("preprocess"), self.get("postprocess")
        return StageTimes(
            infer_s=infer.seconds,
            share_s=self.share.seconds,
            preprocess_s=before.seconds if before else PRIORS.preprocess_s,
            postprocess_s=after.seconds if after else PRIORS.postprocess_s,
            is_measured=all(each and each.is_measured for each in (infer, before, after)),
            spread_s=infer.seconds - min(self._samples["infer"]) if infer.is_measured else 0.0,
        )

    def get(self, measure: str) -> Estimate | None:
        """The median of a measure, else that of other kinds; None without any samples."""
        known = self._medians.get(measure)
        if known is None:
            median_s = self.median_s(measure)
            if median_s is not None:
                known = Estimate(median_s, is_measured=True)
            elif self._at_other_kinds is not None and (others := self._at_other_kinds(measure)):
                known = Estimate(_nearest(self._kind, others), is_measured=False)
            if known is not None:
                self._medians[measure] = known
        return known

    def median_s(self, measure: str) -> float | None:
        """The median of this kind's own samples; None without them."""
        samples = self._samples.get(measure)
        return median(samples) if samples else None

    def quantile_s(self, measure: str, share: float) -> float | None:
        """The sample with `share` of this kind's own below it; None without them."""
        samples = sorted(self._samples.get(measure, ()))
        return samples[int(share * (len(samples) - 1))] if samples else None

    def load_from(self, tier: Tier, link_bytes_per_s: float | None) -> Estimate:
        """Time of a load from `tier`; where unmeasured, that of a slower tier is the upper bound.

        Of its time from remote, the part that loads of the kind's other models take.
        """
        measures = _FROM_AND_BELOW.get(tier, ())
        for measure, candidate in measures:
            known = self.get(measure)
            if known is not None:
                if candidate == tier:
                    return known
                part = None
                if candidate == Tier.REMOTE and (of_all := self._of_all) is not None:
                    part = next(filter(None, [of_all.get(each) for each, _ in measures]), None)
                seconds = min(1.0, part.seconds if part else 1.0) * known.seconds
                return Estimate(seconds, is_measured=False)
        if link_bytes_per_s and tier == Tier.REMOTE:
            return Estimate(PRIORS.load_bytes / link_bytes_per_s, is_measured=False)
        return Estimate(PRIORS.load_s, is_measured=False)

    @property
    def fastest_load_s(self) -> float:
        """Time of a load from the nearest tier."""
        if self._fastest_load_s is None:
            self._fastest_load_s = min(self.load_from(each, None).seconds for each in _BELOW_DEVICE)
        return self._fastest_load_s

    @property
    def infer(self) -> Estimate:
        """Time of one inference: that of the whole batch."""
        return self.get("infer") or Estimate(PRIORS.infer_s, is_measured=False)

    @property
    def share(self) -> Estimate:
        """Device time per request: its batch's time, proportional to its share of the items."""
        return self.get("share") or self.infer

    @property
    def output_bytes(self) -> float | None:
        """Size of a step's outputs in bytes; None: it was not measured."""
        known = self.get(OUTPUT_BYTES)
        return None if known is None else known.seconds


def _nearest(kind: AcceleratorKind | None, medians_s: Mapping[AcceleratorKind, float]) -> float:
    """The median at the nearest share of the same product, else the one among all kinds."""
    if kind is not None:
        same = [other for other in medians_s if other.product == kind.product]
        if same:
            return medians_s[min(same, key=lambda other: (abs(other.share - kind.share), other))]
    return median(medians_s.values())


UNMEASURED: Final = ModelEstimates()
_NEARER_LOADS: Final = (f"load:{Tier.HOST}", f"load:{Tier.DISK}")
_OF_PROXYING: Final = {"network": PRIORS.network_s, "assets": PRIORS.assets_s}
"""Priors of the way from an entry pod to another, and of its first load of a model's tokenizer."""


class SlowedEstimates(ModelEstimates):
    """A model's estimates at a pod that computes `slowness` times as long as its kind's table says.

    Loads and hops take as long as there.
    """

    __slots__ = ("_of", "_slowed", "_slowness")

    def __init__(self, of: ModelEstimates, slowness: float) -> None:
        super().__init__()
        self._of = of
        self._slowness = slowness
        self._slowed: dict[int | None, tuple[StageTimes, StageTimes]] = {}
        """By size class: the table's, and those at the pod."""

    def get(self, measure: str) -> Estimate | None:
        known = self._of.get(measure)
        if known is None or not is_computed(measure):
            return known
        return Estimate(known.seconds * self._slowness, known.is_measured)

    def stages_of(self, of_class: int | None) -> StageTimes:
        times = self._of.stages_of(of_class)
        kept = self._slowed.get(of_class)
        if kept is not None and kept[0] is times:
            return kept[1]
        slowed = StageTimes(
            times.infer_s * self._slowness,
            times.share_s * self._slowness,
            times.preprocess_s * self._slowness,
            times.postprocess_s * self._slowness,
            times.is_measured,
            times.spread_s * self._slowness,
        )
        self._slowed[of_class] = times, slowed
        return slowed

    def load_from(self, tier: Tier, link_bytes_per_s: float | None) -> Estimate:
        return self._of.load_from(tier, link_bytes_per_s)

    @property
    def fastest_load_s(self) -> float:
        return self._of.fastest_load_s


class KindEstimates(dict[str, ModelEstimates]):
    """Estimates at one kind of accelerator, by model key; pods of the kind share this table.

    `[key]` falls back to other kinds for what was not measured at this one, and to priors.
    """

    def __init__(
        self,
        kind: AcceleratorKind | None,
        measurements: "Measurements",
        table: "KindEstimates | None" = None,
        slowness: float = 1.0,
    ) -> None:
        """With `table` its view by a pod that computes `slowness` times as long."""
        super().__init__()
        self.kind = kind
        self.table: KindEstimates = self if table is None else table
        """The kind's own, to which measurements are added."""
        self._slowness = slowness
        self._measurements = measurements
        self._of_all: ModelEstimates = ModelEstimates() if table is None else table._of_all
        """Of all models: samples of proxying, and loads as parts of the time from remote."""

    def slowed(self, slowness: float) -> "KindEstimates":
        """The table as a pod reads it that computes so many times as long as it says."""
        if slowness == 1.0:
            return self.table
        return KindEstimates(self.kind, self._measurements, self.table, slowness)

    def __missing__(self, key: str) -> ModelEstimates:
        if not self._measurements.has(key):
            return UNMEASURED
        if self.table is self:
            return self._add_model(key)
        found = self[key] = SlowedEstimates(self.table[key], self._slowness)
        return found

    def add(self, key: str, measure: str, values_s: Sequence[float], now_s: float = inf) -> None:
        """Add measurements of a model at a pod of this kind, made until `now_s`."""
        found = self.get(key) or self._add_model(key)
        found.add(measure, values_s, now_s)
        if measure in _NEARER_LOADS and (remote_s := found.median_s("load:remote")):
            if self._of_all.get(measure) is None:
                for each in self.values():
                    each.drop_cached(measure)
            self._of_all.add(measure, [seconds / remote_s for seconds in values_s])
        if measure in _OF_PROXYING:
            self._of_all.add(measure, values_s)
        if self._measurements.is_mixed:
            self._measurements.drop_cached(key, measure)

    def proxying(self, key: str, measure: str) -> Estimate:
        """`network` or `assets` of a model, else of all: models differ less than pools."""
        if (own := self[key].get(measure)) is not None:
            return own
        of_all = self._of_all.get(measure)
        return Estimate(of_all.seconds if of_all else _OF_PROXYING[measure], is_measured=False)

    def _add_model(self, key: str) -> ModelEstimates:
        at_other_kinds = partial(self._measurements.medians_s, key)
        found = self[key] = ModelEstimates(self.kind, at_other_kinds, self._of_all)
        return found


class Measurements:
    """The estimates of a pool by kind of accelerator and model."""

    def __init__(self) -> None:
        self._by_kind: dict[AcceleratorKind, KindEstimates] = {}
        self._combined = KindEstimates(None, self)
        self.is_mixed = False
        """Whether there is more than one kind."""

    def at(self, kind: AcceleratorKind) -> KindEstimates:
        """The table of one kind."""
        if kind not in self._by_kind:
            self._by_kind[kind] = KindEstimates(kind, self)
            self.is_mixed = len(self._by_kind) > 1
        return self._by_kind[kind]

    def over_kinds(self) -> KindEstimates:
        """The table of the only kind, else the table that combines all kinds."""
        return next(iter(self._by_kind.values())) if len(self._by_kind) == 1 else self._combined

    def drop_cached(self, key: str, measure: str) -> None:
        """Drop the cached values of all kinds that depend on a model's samples of this measure."""
        for table in (self._combined, *self._by_kind.values()):
            found = table.get(key)
            if found is not None:
                found.drop_cached(measure)

    def drop(self, key: str) -> None:
        """Drop all measurements of a model."""
        for table in (self._combined, *self._by_kind.values()):
            table.pop(key, None)

    def has(self, key: str) -> bool:
        return any(key in table for table in self._by_kind.values())

    def sampled_s(self, key: str) -> float:
        """Time of a model's latest inference samples; -inf without any."""
        found = [each.sampled_s for table in self._by_kind.values() if (each := table.get(key))]
        return max(found, default=-inf)

    def medians_s(self, key: str, measure: str) -> dict[AcceleratorKind, float]:
        """Medians by kind of accelerator, for the kinds with samples."""
        return {
            kind: median_s
            for kind, table in self._by_kind.items()
            if (found := table.get(key)) and (median_s := found.median_s(measure)) is not None
        }
