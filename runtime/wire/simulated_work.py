"""Simulated work: seconds of sleep per stage of a request, for the demo and experiments.

A pod accepts the header `x-pilotlight-simulate` only if it runs with `--allow-simulated-work`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from runtime.errors import InvalidRequest

STAGES: Final = frozenset({"preprocess", "postprocess", "network"})
MAX_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """Seconds of sleep per stage."""

    preprocess_s: float = 0.0
    postprocess_s: float = 0.0
    network_s: float = 0.0


def parse_simulated_work(text: str | None) -> SimulatedWork | None:
    """The sleeps that the header asks for; raises InvalidRequest."""
    if not text:
        return None
    seconds: dict[str, float] = {}
    for part in text.split(","):
        stage, _, value = part.strip().partition("=")
        if stage not in STAGES or not re.fullmatch(r"\d+(\.\d+)?", value):
            raise InvalidRequest(
                "header x-pilotlight-simulate must be stage=seconds for stages"
                f" {sorted(STAGES)}, was {part.strip()!r}"
            )
        seconds[f"{stage}_s"] = min(float(value), MAX_SECONDS)
    return SimulatedWork(**seconds)
