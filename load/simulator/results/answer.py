"""What an application's request got, for the columns that `ANSWER_SCHEMA` adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from registry.domain.model import ModelName


@dataclass(frozen=True, slots=True)
class Answer:
    """`None` where it is not known."""

    application: ModelName
    variant: str | None
    label: int | None
    prediction: int | None
    expected_utility: float | None
    utility: float | None
