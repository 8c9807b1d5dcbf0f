"""What is wrong with the flags of `up` together, or with them and the models that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotlight.commands.apply import models_of
from registry.domain import loading_choice
from registry.domain.model import PlacementName
from runtime.engines.model_server.server_flags import server_problems

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.commands.apply import Declared


def engine_problems(
    pods: int, *, url: str, command: str, repository: str, metrics: str
) -> list[str]:
    problems = server_problems(url=url, command=command, repository=repository, metrics=metrics)
    if pods > 1 and (url or repository):
        problems.append(
            f"--engine-url and --engine-repository serve one pod, --pods was {pods}: each pod needs"
            " a server of its own, which --engine-command starts"
        )
    return problems


def placement_problems(placement: str, *, autoscaler: bool) -> list[str]:
    if placement not in PlacementName.__members__.values():
        return [f"--placement must be one of {', '.join(PlacementName)}, was {placement!r}"]
    if placement != PlacementName.OFF and not autoscaler:
        return [f"--placement {placement} needs the autoscaler: leave out --no-autoscaler"]
    return []


def choice_problems(
    specs: Sequence[Declared], pool: str, loading: str, placement: str
) -> list[str]:
    """Annotations that name another loading policy or planner than the pool's."""
    models = models_of(specs)
    return [
        *loading_choice.loading_problems(models, pool, loading),
        *loading_choice.placement_problems(models, pool, placement),
    ]
