"""Predicts a run's next steps by decaying counts of earlier runs, which can be merged and kept.

Zhang et al. 2025, section 5.2: the table (application, T_k) -> {(S_i, f_i)}, S_0 the end of a run.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp, inf, log
from typing import Annotated, Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from pydantic import Field, TypeAdapter

END: Final = ""
"""Follows the last step of a run. No model has an empty name."""
MAX_CONTEXTS: Final = 4096
"""Of one workflow; beyond it the contexts seen longest ago go."""
MAX_UNSTORED: Final = 4096
"""Calls that wait to be stored; of more, while the registry does not answer, the latest."""

Context: TypeAlias = tuple[str, ...]


_STORED: Final = TypeAdapter(
    list[
        tuple[Context, dict[str, Annotated[float, Field(strict=True, ge=0.0, allow_inf_nan=False)]]]
    ]
)
"""Counts as they are stored: pairs of a context and what followed it."""


@dataclass(slots=True)
class _Followers:
    by_model: dict[str, float] = field(default_factory=dict)
    at_s: float = 0.0
    """Time of the counts, which decay from then on."""

    def decay(self, now_s: float, half_life_s: float) -> None:
        passed_s = now_s - self.at_s
        self.at_s = now_s
        if 0 < passed_s < inf and half_life_s < inf:
            factor = 0.5 ** (passed_s / half_life_s)
            for model in self.by_model:
                self.by_model[model] *= factor


class StepCounts:
    """Counts of the steps that followed each context, by one workflow."""

    def __init__(self, half_life_s: float = inf, max_contexts: int = MAX_CONTEXTS) -> None:
        """Counts halve in `half_life_s` seconds; infinite: plain frequencies."""
        self._half_life_s = half_life_s
        self._max_contexts = max_contexts
        self._followers: dict[Context, _Followers] = {}

    def add(self, context: Context, model: str, now_s: float, count: float = 1.0) -> None:
        """Count a step that followed. A clock that was set back stops the decay once."""
        followers = self._followers.pop(context, None) or _Followers(at_s=now_s)
        followers.decay(now_s, self._half_life_s)
        followers.by_model[model] = followers.by_model.get(model, 0.0) + count
        self._followers[context] = followers
        if len(self._followers) > self._max_contexts:
            del self._followers[next(iter(self._followers))]

    def after(self, context: Context, now_s: float) -> dict[str, float]:
        """Counts of what followed, END included; empty for a context never seen."""
        followers = self._followers.get(context)
        if followers is None:
            return {}
        followers.decay(now_s, self._half_life_s)
        return dict(followers.by_model)

    def as_json(self, now_s: float) -> list[list[object]]:
        """[context, {model: count}] pairs as of now, for storage."""
        return [[list(context), self.after(context, now_s)] for context in self._followers]

    def read_json(self, stored: object, now_s: float) -> None:
        """Add stored counts. Raises ValueError without adding any where one is damaged."""
        for context, followers in _STORED.validate_python(stored):
            for model, count in followers.items():
                self.add(context, model, now_s, count)


def shares(counts: Mapping[str, float]) -> dict[str, float]:
    """Counts as probabilities; empty where there are none."""
    total = sum(counts.values())
    return {model: count / total for model, count in counts.items()} if total > 0 else {}


def most_likely(probabilities: Mapping[str, float]) -> str | None:
    """The likeliest step, the first by name among equals; None where nothing is known."""
    if not probabilities:
        return None
    return min(probabilities, key=lambda model: (-probabilities[model], model))


HALF_LIFE_S: Final = 6 * 3600.0
"""A workflow's habits of yesterday evening count a sixteenth of today's."""
_MAX_LATEST: Final = 6
"""Steps of the contexts shorter than all steps so far."""
BEGIN: Final = ""
"""Marks the context of all steps so far. No model has an empty name."""
_FEATURE_PRIOR: Final = 4.0
"""Observations that a feature's average counts as, for each step."""
_MAX_FEATURE_CONTEXTS: Final = 16_384


class LongestContext:
    """Counts of one workflow's steps by context, and by feature and latest step.

    Contexts of growing length, up to all steps so far, are blended by how much each has been seen
    (Witten and Bell 1991, method C): a context with n observations of k different steps counts n /
    (n + k), shorter ones the rest. Features of the request then weigh each step by how much more
    often it came with them (naive Bayes).
    """

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._counts = StepCounts(half_life_s)
        self._by_feature = StepCounts(half_life_s, _MAX_FEATURE_CONTEXTS)

    def probabilities(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> dict[str, float]:
        """Of each model that may follow `steps`, and END; empty where nothing is known."""
        blended: dict[str, float] = {}
        for context in _contexts(steps):
            counts = self._counts.after(context, now_s)
            total = sum(counts.values())
            if total <= 0:
                break
            shorter = len(counts) / (total + len(counts)) if blended else 0.0
            share = (1.0 - shorter) / total
            blended = {model: shorter * known for model, known in blended.items()}
            for model, count in counts.items():
                blended[model] = blended.get(model, 0.0) + share * count
        return self._weighed(blended, steps, features, now_s) if features else blended

    def observe(
        self, steps: Sequence[str], following: str, features: Collection[str], now_s: float
    ) -> None:
        """Count a step, or END, that followed."""
        for context in _contexts(steps):
            self._counts.add(context, following, now_s)
        for feature in features:
            self._by_feature.add((feature, *steps[-1:]), following, now_s)

    def as_json(self, now_s: float) -> dict[str, object]:
        """All counts as of now, for storage."""
        return {"steps": self._counts.as_json(now_s), "features": self._by_feature.as_json(now_s)}

    def read_json(self, stored: Mapping[str, object], now_s: float) -> None:
        """Add stored counts. Raises ValueError where they are damaged."""
        self._counts.read_json(stored.get("steps", []), now_s)
        self._by_feature.read_json(stored.get("features", []), now_s)

    def _weighed(
        self,
        prior: Mapping[str, float],
        steps: Sequence[str],
        features: Collection[str],
        now_s: float,
    ) -> dict[str, float]:
        """The prior times, for each feature, how much likelier it is with each step."""
        latest = tuple(steps[-1:])
        seen = self._counts.after(latest, now_s)
        total = sum(seen.values())
        scores = {model: log(share) for model, share in prior.items() if share > 0}
        for feature in features:
            together = self._by_feature.after((feature, *latest), now_s)
            average = sum(together.values()) / total if total > 0 else 0.0
            if not 0 < average < 1:
                continue
            for model in scores:
                expected = _FEATURE_PRIOR + seen.get(model, 0.0)
                found = _FEATURE_PRIOR + together.get(model, 0.0) / average
                scores[model] += log(found / expected)
        highest = max(scores.values(), default=0.0)
        return shares({model: exp(score - highest) for model, score in scores.items()})


def _contexts(steps: Sequence[str]) -> Iterator[Context]:
    """The latest steps, from none to the longest stretch, then all steps from the begin."""
    for length in range(min(len(steps), _MAX_LATEST) + 1):
        yield tuple(steps[len(steps) - length :])
    yield (BEGIN, *steps)


MAX_WORDS: Final = 32
"""Of one argument: the first ones."""
_MAX_CHARACTERS: Final = 4096
_WORD_CLASSES: Final = 1024
_WORD_PATTERN: Final = re.compile(r"\w{3,}")


def request_features(arguments: Mapping[str, object]) -> frozenset[str]:
    """Short names, equal for requests that are alike; bounded in number and length."""
    return frozenset(
        f"{name[:32]}:{feature}"
        for name, value in arguments.items()
        for feature in _features(value)
    )


def _features(value: object) -> Iterator[str]:
    yield type(value).__name__
    match value:
        case bool() | None:
            yield f"is-{value}"
        case int() if abs(value) < 1000:
            yield f"is-{value}"
        case str():
            yield f"length-{len(value).bit_length()}"
            words = _WORD_PATTERN.findall(value[:_MAX_CHARACTERS].lower())[:MAX_WORDS]
            yield from {f"word-{crc32(word.encode()) % _WORD_CLASSES}" for word in words}
        case bytes() | list() | dict():
            yield f"length-{len(value).bit_length()}"


class InputPositions:
    """Counts of relative input positions by a step's model and all models before it.

    Where these were never seen together, those by the step's model and the one before it count.
    """

    def __init__(self, half_life_s: float = inf) -> None:
        self.counts = StepCounts(half_life_s)

    def observe(
        self, steps: Sequence[str], model: str, inputs: Sequence[int], now_s: float
    ) -> None:
        """Count that `model`, called after `steps`, took the outputs of the steps `inputs`."""
        offsets = sorted({position - len(steps) for position in inputs})
        for context in _input_contexts(steps, model):
            self.counts.add(context, ",".join(map(str, offsets)), now_s)

    def expected(self, steps: Sequence[str], model: str, now_s: float) -> tuple[int, ...]:
        """Positions of the inputs most often taken; of an unseen step, the step before it."""
        for context in _input_contexts(steps, model):
            offsets = most_likely(self.counts.after(context, now_s))
            if offsets is not None:
                break
        else:
            return (len(steps) - 1,) if steps else ()
        found = [len(steps) + int(offset) for offset in offsets.split(",") if offset]
        return tuple(position for position in found if 0 <= position < len(steps))


def _input_contexts(steps: Sequence[str], model: str) -> tuple[Context, Context]:
    return (BEGIN, *steps, model), (*steps[-1:], model)


MAX_STEPS: Final = 32
MIN_PATH_PROBABILITY: Final = 0.05


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A step that no call has asked for yet."""

    model: str
    inputs: tuple[int, ...]
    """Positions in the run, known steps first."""
    probability: float
    """Of this step and all predicted ones before it."""


def predicted_steps(
    known: Sequence[str],
    probabilities: Callable[[Sequence[str]], Mapping[str, float]],
    positions: InputPositions,
    now_s: float,
) -> list[PredictedStep]:
    """Continue the known steps by the likeliest ones, one after the other until the run's end.

    `probabilities`: of each model that may follow steps, and of END; empty where nothing is known.

    Zhang et al. 2025, section 5.2. The paper has no horizon; here predictions stop at 32 steps and
    below a probability of 0.05 for the path.
    """
    run, path, found = list(known), 1.0, list[PredictedStep]()
    while len(found) < MAX_STEPS:
        following = probabilities(run)
        model = most_likely(following)
        if model is None or model == END:
            break
        path *= following[model]
        if path < MIN_PATH_PROBABILITY:
            break
        found.append(PredictedStep(model, positions.expected(run, model, now_s), path))
        run.append(model)
    return found


class ObservedCall(NamedTuple):
    """A model, or END, that followed `steps`."""

    steps: Sequence[str]
    model: str
    features: Collection[str]
    now_s: float
    inputs: Sequence[int] = ()
    """Positions of the steps whose outputs it took."""


class WorkflowKnowledge:
    """Counts of one workflow. Belongs to the scheduler's event loop.

    Several schedulers add to the same stored counts: what this one has observed since it stored
    its own is kept apart.
    """

    def __init__(self) -> None:
        self.predictor = LongestContext()
        self._positions = InputPositions(HALF_LIFE_S)
        self.unstored: deque[ObservedCall] = deque(maxlen=MAX_UNSTORED)

    def predict(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> list[PredictedStep]:
        """The steps that are likely to follow, with the positions of their inputs."""
        probabilities = partial(self.predictor.probabilities, features=features, now_s=now_s)
        return predicted_steps(steps, probabilities, self._positions, now_s)

    def observe(self, call: ObservedCall) -> None:
        self._count(call)
        self.unstored.append(call)

    def _count(self, call: ObservedCall) -> None:
        self.predictor.observe(*call[:4])
        if call.model != END:
            self._positions.observe(call.steps, call.model, call.inputs, call.now_s)

    # Storage

    def as_json(self, now_s: float) -> dict[str, Any]:
        inputs = self._positions.counts.as_json(now_s)
        return {"at_s": now_s, "steps": self.predictor.as_json(now_s), "inputs": inputs}

    def with_stored(self, stored: Mapping[str, Any], now_s: float) -> "WorkflowKnowledge":
        """Stored counts, which have decayed since, and what is not stored yet.

        Raises ValueError where they are damaged.
        """
        found, at_s = WorkflowKnowledge(), min(float(stored.get("at_s", now_s)), now_s)
        found.predictor.read_json(stored.get("steps", {}), at_s)
        found._positions.counts.read_json(stored.get("inputs", []), at_s)
        for call in self.unstored:
            found._count(call)
        return found

    def adopt(self, found: "WorkflowKnowledge", stored: int) -> None:
        """Go on from the counts of `with_stored`, of whose calls the first are `stored` now."""
        self.predictor, self._positions = found.predictor, found._positions
        self.unstored = deque(list(self.unstored)[stored:], MAX_UNSTORED)
