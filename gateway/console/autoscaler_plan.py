"""What the autoscaler would do now: a dry run by `pilotlight autoscaler --dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.console.command_runs import Job, Step, registry_environment

if TYPE_CHECKING:
    from registry.redis.client import Registry

TITLE: Final = "plan"


def plan_job(registry: Registry, loading: str) -> Job:
    """Plan once with this loading policy, without doing anything."""
    arguments = ("autoscaler", "--dry-run", "--explain", "--loading", loading)
    steps = [Step("the plan", arguments)]
    return Job(TITLE, steps, registry_environment(registry), context={"loading": loading})
