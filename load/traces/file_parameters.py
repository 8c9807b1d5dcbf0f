"""What the sources that read files take."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from load.traces.batches import DEFAULT_TENANT
from load.traces.parameters import Burstiness, DurationS, Name, Parameters


class FileParameters(Parameters):
    """A file, or several by a pattern; later ones go on where earlier ones end."""

    value: str


class RequestParameters(FileParameters):
    """A row per request."""

    window: DurationS | None = None
    """How much earlier than the rows above it a row may arrive; the format's own by default."""


class TenantParameters(RequestParameters):
    """A row per request, of no tenant in particular."""

    tenant: Name = DEFAULT_TENANT


class OneModelParameters(TenantParameters):
    """A row per request, all to one model."""

    model: Name = "llm"


class CountParameters(FileParameters):
    """Counts per minute, to be expanded."""

    within: Literal["uniform", "gamma"] = "uniform"
    cv: Burstiness | None = None

    @model_validator(mode="after")
    def _cv_belongs_to_gamma(self) -> CountParameters:
        if (self.cv is not None) != (self.within == "gamma"):
            raise ValueError("should have both within=gamma and cv=…, or neither")
        return self


class TenantCountParameters(CountParameters):
    """Counts per minute of no tenant in particular."""

    tenant: Name = DEFAULT_TENANT
