"""Copies of models when queues grow, and steps to the copy with the shortest queue.

After Ray Serve (Zhang et al. 2025, section 8.1), with the defaults of its AutoscalingConfig: as
many copies as keep `target_steps` steps per copy, by the mean over the last 30 s, once that has
held for 30 s, and fewer after 10 minutes. Ours: a model without a copy gets one at once, and idle
copies make room, those beyond what their model wants first. Times in seconds, sizes in bytes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil


@dataclass(frozen=True, slots=True)
class ReactiveParams:
    target_steps: float = 2.0
    """Queued and running steps per copy."""
    look_back_s: float = 30.0
    grow_after_s: float = 30.0
    shrink_after_s: float = 600.0
    is_one_per_device: bool = False
    """Each device for one copy (section 8.1)."""


@dataclass(frozen=True, slots=True)
class ModelCopy:
    model: str
    device: int
    steps: int
    """Queued and running."""
    is_loading: bool = False


@dataclass(frozen=True, slots=True)
class CopiesView:
    """What the policy reads."""

    copies: Sequence[ModelCopy]
    memory_bytes: Sequence[float]
    """By device."""
    size_bytes: Mapping[str, float]
    """By model; all models that may have copies."""
    waiting: Mapping[str, int]
    """Steps of models that have no copy."""


@dataclass(frozen=True, slots=True)
class ReactiveState:
    """The policy's memory."""

    samples: Mapping[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    """By model: times and steps under way."""
    wishes: Mapping[str, tuple[bool, float]] = field(default_factory=dict)
    """By model: whether more copies are wanted or fewer, and since when."""


@dataclass(frozen=True, slots=True)
class CopyChanges:
    added: tuple[tuple[str, int], ...] = ()
    """Model and device."""
    removed: tuple[int, ...] = ()
    """Positions in the view's copies; these are idle."""


def shortest_queue(copies: Sequence[ModelCopy], model: str) -> int | None:
    """Position of the model's copy with the fewest steps, loaded ones first; None without one."""
    options = [at for at, copy in enumerate(copies) if copy.model == model]
    return min(options, key=lambda at: (copies[at].steps, copies[at].is_loading, at), default=None)


def reactive(
    state: ReactiveState, view: CopiesView, now_s: float, params: ReactiveParams
) -> tuple[ReactiveState, CopyChanges]:
    """The copies to add and to remove now."""
    under_way: Counter[str] = Counter()
    for copy in view.copies:
        under_way[copy.model] += copy.steps
    samples = {
        model: _sampled(state, view, under_way, model, now_s, params) for model in view.size_bytes
    }
    means = {model: sum(n for _, n in each) / len(each) for model, each in samples.items()}
    wanted = {model: max(1, ceil(mean / params.target_steps)) for model, mean in means.items()}
    present = Counter(copy.model for copy in view.copies)
    wishes = {
        model: _wish(state, model, wanted[model] > present[model], now_s)
        for model in view.size_bytes
        if wanted[model] != present[model]
    }
    room = _Room(view, params, wanted)
    for model in sorted(view.size_bytes, key=lambda each: (-means[each], each)):
        if view.waiting.get(model, 0) > 0 and present[model] == 0:
            room.add(model, is_urgent=True)
    for model, (is_more, since_s) in sorted(wishes.items(), key=lambda each: (each[1][1], each[0])):
        if is_more and now_s - since_s >= params.grow_after_s:
            for _ in range(wanted[model] - room.count(model)):
                room.add(model)
        elif not is_more and now_s - since_s >= params.shrink_after_s:
            room.shrink(model)
    return ReactiveState(samples, wishes), CopyChanges(tuple(room.added), tuple(room.removed))


def _sampled(
    state: ReactiveState,
    view: CopiesView,
    under_way: Mapping[str, int],
    model: str,
    now_s: float,
    params: ReactiveParams,
) -> tuple[tuple[float, int], ...]:
    latest = (now_s, under_way.get(model, 0) + view.waiting.get(model, 0))
    before = state.samples.get(model, ())
    return (*(each for each in before if each[0] > now_s - params.look_back_s), latest)


def _wish(state: ReactiveState, model: str, is_more: bool, now_s: float) -> tuple[bool, float]:
    before = state.wishes.get(model)
    return before if before is not None and before[0] == is_more else (is_more, now_s)


class _Room:
    """The devices while copies are added and removed."""

    def __init__(self, view: CopiesView, params: ReactiveParams, wanted: Mapping[str, int]) -> None:
        self._view = view
        self._params = params
        self._wanted = wanted
        self.added: list[tuple[str, int]] = []
        self.removed: list[int] = []
        self._counts = Counter(copy.model for copy in view.copies)
        """By model, without those removed, with those added."""

    def count(self, model: str) -> int:
        return self._counts[model]

    def shrink(self, model: str) -> None:
        """Remove idle copies beyond those wanted."""
        for at in self._idle(device=None):
            if self._view.copies[at].model == model and self.count(model) > self._wanted[model]:
                self._remove(at)

    def _remove(self, at: int) -> None:
        self.removed.append(at)
        self._counts[self._view.copies[at].model] -= 1

    def add(self, model: str, *, is_urgent: bool = False) -> None:
        """A copy on the device with the most free memory, or where the least has to go for it."""
        best: tuple[float, float, int, list[int]] | None = None
        for device in range(len(self._view.memory_bytes)):
            gone = self._to_remove(model, device, is_urgent=is_urgent)
            if gone is not None:
                lost = sum(self._view.size_bytes[self._view.copies[at].model] for at in gone)
                option = (lost, -self._free_bytes(device), device, gone)
                best = option if best is None else min(best, option)
        if best is not None:
            for at in best[3]:
                self._remove(at)
            self.added.append((model, best[2]))
            self._counts[model] += 1

    def _to_remove(self, model: str, device: int, *, is_urgent: bool) -> list[int] | None:
        """Copies that must go from a device; None where the model finds no room."""
        held = [
            self._view.copies[at] for at in self._kept() if self._view.copies[at].device == device
        ]
        number = len(held) + sum(at == device for _, at in self.added)
        size_bytes, free = self._view.size_bytes, self._free_bytes(device)
        gone = list[int]()
        leaving: dict[str, int] = {}
        for at in [*self._idle(device), None]:
            is_alone = number == 0 or not self._params.is_one_per_device
            if free >= size_bytes[model] and is_alone:
                return gone
            if at is None:
                break
            other = self._view.copies[at].model
            is_spare = self.count(other) - leaving.get(other, 0) > self._wanted[other]
            if is_spare or (is_urgent and other != model):
                gone.append(at)
                free += size_bytes[other]
                number -= 1
                leaving[other] = leaving.get(other, 0) + 1
        return None

    def _kept(self) -> Iterable[int]:
        return (at for at in range(len(self._view.copies)) if at not in self.removed)

    def _idle(self, device: int | None) -> list[int]:
        """Idle copies, those of models with more copies than wanted first."""
        copies = self._view.copies
        found = [
            at
            for at in self._kept()
            if copies[at].steps == 0
            and not copies[at].is_loading
            and device in (None, copies[at].device)
        ]
        surplus = {
            at: self.count(copies[at].model) - self._wanted[copies[at].model] for at in found
        }
        return sorted(found, key=lambda at: (surplus[at] <= 0, at))

    def _free_bytes(self, device: int) -> float:
        held = [self._view.copies[at] for at in self._kept()]
        used = [copy.model for copy in held if copy.device == device]
        used += [model for model, at in self.added if at == device]
        return self._view.memory_bytes[device] - sum(self._view.size_bytes[each] for each in used)
