"""The least total latency of a small case, by exhaustive search with every arrival known.

Two pods of one slot: a pod serves one request at a time, and loads the model first if it does not
hold it. Decisions are the pod of each request, the order at each pod, and what a load evicts. A
load starts with an arrived request, as under a routing policy; none is made ahead.

Branch and bound, one request per level. A partial schedule is dropped if another one of the same
models served and held has both pods free earlier at lower cost, or if its bound exceeds the best
known total. Requests for one model are served in the order of arrival: exchanging two of them
changes no total.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SmallCase:
    """Arrivals of requests for a few models. Times in seconds."""

    requests: tuple[tuple[float, str], ...]
    """Time and model, in the order of arrival."""
    load_s: Mapping[str, float]
    infer_s: Mapping[str, float]
    places: int
    """Models that a pod holds."""
    pods: int = 2


@dataclass(frozen=True, slots=True)
class Step:
    """A request's place in a schedule."""

    request: int
    pod: int
    start_s: float
    end_s: float
    is_load: bool
    evicted: str | None


@dataclass(frozen=True, slots=True)
class Schedule:
    total_s: float
    """Latencies of all requests together."""
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class _Pod:
    free_s: float
    number: int
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Partial:
    total_s: float
    pods: tuple[_Pod, ...]
    """Sorted by the models held."""
    last: Step | None = None
    before: "_Partial | None" = None


def optimum(case: SmallCase) -> Schedule:
    """The schedule with the least total latency."""
    by_model: dict[str, list[int]] = {}
    for number, (_, model) in enumerate(case.requests):
        by_model.setdefault(model, []).append(number)
    models = list(by_model)
    start = _Partial(0.0, tuple(_Pod(0.0, each, frozenset()) for each in range(case.pods)))
    best = _greedy(case, start)
    level: dict[tuple[int, ...], list[_Partial]] = {(0,) * len(models): [start]}
    for _ in case.requests:
        following: dict[tuple[int, ...], dict[tuple[frozenset[str], ...], list[_Partial]]] = {}
        for served, partials in level.items():
            for place, model in enumerate(models):
                if served[place] == len(by_model[model]):
                    continue
                then = (*served[:place], served[place] + 1, *served[place + 1 :])
                open_ = [
                    number
                    for name, count in zip(models, then, strict=True)
                    for number in by_model[name][count:]
                ]
                group = following.setdefault(then, {})
                for partial in partials:
                    for each in _served(case, partial, by_model[model][served[place]]):
                        if each.total_s + _bound_s(case, each, open_) < best.total_s:
                            _keep(group.setdefault(tuple(p.held for p in each.pods), []), each)
        level = {
            then: [each for front in group.values() for each in front]
            for then, group in following.items()
        }
    ends = [each for partials in level.values() for each in partials]
    best = min([best, *ends], key=lambda each: each.total_s)
    return Schedule(best.total_s, tuple(_steps(best)))


def _greedy(case: SmallCase, start: _Partial) -> _Partial:
    """A schedule in the order of arrival: an upper bound."""
    found = start
    for number in range(len(case.requests)):
        found = min(_served(case, found, number), key=lambda each: each.total_s)
    return found


def _served(case: SmallCase, partial: _Partial, number: int) -> Iterator[_Partial]:
    """The request appended at each pod, with each choice of a model to evict."""
    for pod in partial.pods:
        others = [each for each in partial.pods if each is not pod]
        at_s, model = case.requests[number]
        start_s = max(pod.free_s, at_s)
        is_load = model not in pod.held
        end_s = start_s + case.infer_s[model] + (case.load_s[model] if is_load else 0.0)
        is_full = is_load and len(pod.held) == case.places
        for evicted in sorted(pod.held) if is_full else [None]:
            held = (pod.held - {evicted}) | {model} if evicted else pod.held | {model}
            after = sorted(
                [*others, _Pod(end_s, pod.number, held)],
                key=lambda each: (sorted(each.held), each.free_s),
            )
            yield _Partial(
                partial.total_s + end_s - at_s,
                tuple(after),
                Step(number, pod.number, start_s, end_s, is_load, evicted),
                partial,
            )


def _bound_s(case: SmallCase, partial: _Partial, open_: Sequence[int]) -> float:
    """Latencies that the remaining requests have at least: no load, no queue behind each other."""
    free_s = min(each.free_s for each in partial.pods)
    return sum(
        max(0.0, free_s - case.requests[number][0]) + case.infer_s[case.requests[number][1]]
        for number in open_
    )


def _keep(front: list[_Partial], new: _Partial) -> None:
    """Add to the partial schedules of one state, unless another is at least as good in all."""
    for each in front:
        if _is_no_worse(each, new):
            return
    front[:] = [each for each in front if not _is_no_worse(new, each)]
    front.append(new)


def _is_no_worse(one: _Partial, other: _Partial) -> bool:
    return one.total_s <= other.total_s and all(
        mine.free_s <= theirs.free_s for mine, theirs in zip(one.pods, other.pods, strict=True)
    )


def _steps(partial: _Partial) -> list[Step]:
    found: list[Step] = []
    at: _Partial | None = partial
    while at is not None and at.last is not None:
        found.append(at.last)
        at = at.before
    return sorted(found, key=lambda each: (each.start_s, each.pod))
