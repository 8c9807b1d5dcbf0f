"""Hypothesis judges what examples show, never how long a busy machine takes for them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "unhurried",
    parent=settings(),  # locally hypothesis' defaults, in continuous integration its `ci`
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")
