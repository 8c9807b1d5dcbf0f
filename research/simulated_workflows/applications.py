"""The applications' requests: which models each calls, with which inputs, known when."""

import csv
import gzip
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from research.simulated_workflows import constants


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model, in the order in which the code makes them."""

    model: str
    inputs: tuple[int, ...] = ()
    known_after: tuple[int, ...] = ()
    """Steps whose outputs the code fetches before it makes this call."""


@dataclass(frozen=True, slots=True)
class WorkflowRequest:
    workflow: str
    calls: tuple[Call, ...]
    features: frozenset[str]
    """What is known at the begin."""


def gill(rng: random.Random) -> WorkflowRequest:
    """Image encoder per image, language model, diffusion if it asks for an image."""
    [images] = rng.choices(list(constants.IMAGES), list(constants.IMAGES.values()))
    calls = [Call("gill-encoder") for _ in range(images)]
    language = len(calls)
    calls.append(Call("gill-language", tuple(range(images))))
    if rng.random() < constants.ASKS_IMAGE:
        calls.append(Call("gill-diffusion", (language,), (language,)))
    return WorkflowRequest("gill", tuple(calls), frozenset({f"images:is-{images}"}))


def knowledge_card(
    rng: random.Random, word_is_true: float = constants.WORD_IS_TRUE
) -> WorkflowRequest:
    """The language model picks a card, which answers, and the language model concludes."""
    card = rng.randrange(constants.CARDS)
    is_true = rng.random() < word_is_true
    word = card if is_true else rng.randrange(constants.CARDS)
    calls = (Call("language"), Call(f"card-{card:02}", (0,), (0,)), Call("language", (0, 1), (0,)))
    return WorkflowRequest("knowledge-card", calls, frozenset({f"question:word-{word}"}))


def debate(rng: random.Random) -> WorkflowRequest:
    """Agents answer in rounds until all agree at the end of one."""
    agents = constants.AGENTS
    calls: list[Call] = []
    for agrees in constants.AGREES:
        before = tuple(range(len(calls) - agents, len(calls))) if calls else ()
        calls += [Call("language", before, before) for _ in range(agents)]
        if rng.random() < agrees:
            break
    return WorkflowRequest("debate", tuple(calls), frozenset())


_ALL_REQUESTS: Final = {
    name: float(
        constants.BASES[name].requests
        if name in constants.BASES
        else constants.OTHER_BASES.requests / (len(constants.BASE_NAMES) - len(constants.BASES))
    )
    for name in constants.BASE_NAMES
}
"""By base model, in the whole trace."""


def gentd26(rng: random.Random, requests: Mapping[str, float] = _ALL_REQUESTS) -> WorkflowRequest:
    """The prompt names up to six LoRAs, which the base model takes; an argument names the base.

    `requests`: by base model of the trace, how often it is asked for.
    """
    [base] = rng.choices(list(requests), list(requests.values()))
    count = 0
    if rng.random() < constants.base_figures(base).lora_share:
        numbers = constants.LORAS_OF_REQUEST
        [count] = rng.choices(list(numbers), list(numbers.values()))
    loras, wanted = constants.lora_models(base), list[str]()
    while len(wanted) < count:
        ranks = range(1, len(loras) + 1)
        [lora] = rng.choices(loras, [1 / rank for rank in ranks])
        wanted.append(loras.pop(loras.index(lora)))
    calls = [Call("prompt-encoder"), *(Call(lora, (), (0,)) for lora in wanted)]
    calls.append(Call(constants.base_model(base), tuple(range(len(calls))), (0,)))
    return WorkflowRequest("gentd26", tuple(calls), frozenset({f"checkpoint:word-{base}"}))


Generators: TypeAlias = "Mapping[str, Callable[[random.Random], WorkflowRequest]]"
GENERATORS: Final[Generators] = {
    "gill": gill,
    "knowledge-card": knowledge_card,
    "debate": debate,
    "gentd26": gentd26,
}
APPLICATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (name,) for name in GENERATORS},
    "mix": ("gill", "knowledge-card", "debate"),
}
"""The workflows of each; in `mix` two share the language model."""


MODELS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "gill": ("gill-encoder", "gill-language", "gill-diffusion"),
    "knowledge-card": ("language", *(f"card-{at:02}" for at in range(constants.CARDS))),
    "debate": ("language",),
    "gentd26": tuple(constants.GENTD26_MODELS),
}


def models_of(application: str) -> list[str]:
    """The models of all its workflows, each once."""
    workflows = APPLICATIONS[application]
    return list(dict.fromkeys(model for name in workflows for model in MODELS_OF[name]))


def mean_work_s(application: str, rng: random.Random, samples: int = 400) -> float:
    """Device time of a request, with batches of one."""
    workflows = APPLICATIONS[application]
    requests = [GENERATORS[workflows[at % len(workflows)]](rng) for at in range(samples)]
    seconds = [constants.MODELS[call.model].first_s for each in requests for call in each.calls]
    return sum(seconds) / samples


# When requests arrive: minutes of a public trace, mapped to workflows in turn, and scaled.
#
# GenTD26 is that trace's own application: its requests ask for the models of their minute.


FILE: Final = "gentd26_per_minute.csv.gz"
_FIRST_MINUTE: Final = 227 * 120
"""Begin of the trace's two busiest hours."""


def arrivals(
    file: Path,
    application: str,
    rate_per_s: float,
    rng: random.Random,
    minutes: int,
    *,
    changes_at_s: float | None = None,
    generators: Generators = GENERATORS,
) -> list[tuple[float, WorkflowRequest]]:
    """Times and requests; `rate_per_s` on average, by minute and workflow as in the trace.

    From `changes_at_s` on GILL's requests are doubled and those of others halved (section 8.2).
    """
    workflows = APPLICATIONS[application]
    counts = _counts(file, len(workflows), minutes)
    total = sum(models.total() for models in counts.values())
    found = []
    for (minute, workflow), models in sorted(counts.items()):
        name = workflows[workflow]
        expected = rate_per_s * minutes * 60 * models.total() / total
        if changes_at_s is not None and minute * 60 >= changes_at_s:
            expected *= 2.0 if name == "gill" else 0.5
        number = int(expected) + (rng.random() < expected % 1)
        for _ in range(number):
            time_s = (minute + rng.random()) * 60
            request = gentd26(rng, models) if name == "gentd26" else generators[name](rng)
            found.append((time_s, request))
    return sorted(found, key=lambda each: each[0])


def _counts(file: Path, workflows: int, minutes: int) -> dict[tuple[int, int], Counter[str]]:
    """Requests of each model, by minute and position of the workflow, in order of models' names."""
    rows = []
    with gzip.open(file, "rt") as lines:
        for row in csv.DictReader(lines):
            minute = int(row["minute"]) - _FIRST_MINUTE
            if 0 <= minute < minutes:
                rows.append((minute, row["model"], int(row["count"])))
    positions = {name: at % workflows for at, name in enumerate(sorted({m for _, m, _ in rows}))}
    counts: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for minute, model, count in rows:
        counts[minute, positions[model]][model] += count
    return counts
