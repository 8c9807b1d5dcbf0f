"""What an InferenceService asks of its task beyond the model's own files."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Answers(StrEnum):
    """Forms of answers, as annotation values."""

    OWN = "pilotlight"
    KSERVE = "kserve"
    """Those of KServe's Hugging Face server."""


class Scores(StrEnum):
    """What a classification answers, as annotation values."""

    BEST = "best"
    """The likeliest class."""
    ALL = "all"
    """The score of every class."""
    LOGITS = "logits"
    """The network's output for every class, as it is."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    answers: Answers = Answers.OWN
    scores: Scores = Scores.BEST
    max_tokens: int | None = None
    """Texts are cut there; None: at the model's own limit, which holds in any case."""
    keeps_case: bool = False
    """The tokenizer does not change letters to lower case."""
    adds_special_tokens: bool = True
    """Tokens such as `[CLS]` are put around each text."""


OWN: Final = TaskOptions()
"""Where nothing is asked for."""
