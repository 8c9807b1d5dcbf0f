"""The `server-timing` header, in which pods and gateways report the time of each stage."""

from __future__ import annotations

import math


def parse_server_timing(value: str) -> dict[str, float]:
    """Milliseconds by name; entries without a finite `dur` are left out."""
    durations: dict[str, float] = {}
    for entry in value.replace("; ", ";").split(","):
        name, found, duration = entry.partition(";dur=")
        if found:
            try:
                milliseconds = float(duration.partition(";")[0])
            except ValueError:
                continue
            if math.isfinite(milliseconds):
                durations[name.partition(";")[0].strip()] = milliseconds
    return durations
