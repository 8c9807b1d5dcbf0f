"""Simulated work: seconds of sleep per stage of a request, for the demo and experiments.

A pod accepts the header `x-pilotlight-simulate` only if it runs with `--allow-simulated-work`.
"""

from __future__ import annotations

import re
from typing import Final

from runtime.errors import InvalidRequest

STAGES: Final = frozenset({"preprocess", "postprocess", "network"})
MAX_SECONDS: Final = 600.0


def parse_simulated_work(text: str | None) -> dict[str, float]:
    """Seconds of sleep per stage, such as `preprocess=0.5,network=1`; raises InvalidRequest."""
    seconds: dict[str, float] = {}
    for part in text.split(",") if text else ():
        stage, _, value = part.strip().partition("=")
        if stage not in STAGES or not re.fullmatch(r"\d+(\.\d+)?", value):
            raise InvalidRequest(
                "header x-pilotlight-simulate must be stage=seconds for stages"
                f" {sorted(STAGES)}, was {part.strip()!r}"
            )
        seconds[stage] = min(float(value), MAX_SECONDS)
    return seconds
