"""What the shell offers for names: models and pods of the platform, policies, experiments."""

import asyncio

import click

from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import PilotlightError
from registry.domain.cluster import ClusterState
from registry.domain.model import RoutingPolicy


def complete_model(ctx: click.Context, incomplete: str) -> list[str]:
    """Models of the platform; those of the namespace `default`, or of -n, by their short names."""
    namespace = ctx.params.get("namespace") or "default"
    names = [
        name.name if name.namespace == namespace else str(name) for name in _cluster(ctx).models
    ]
    return sorted(name for name in names if name.startswith(incomplete))


def complete_pod(ctx: click.Context, incomplete: str) -> list[str]:
    return sorted(name for name in _cluster(ctx).pods if name.startswith(incomplete))


def complete_policy(incomplete: str) -> list[str]:
    """Routing policies."""
    return [str(each) for each in RoutingPolicy if each.startswith(incomplete)]


def complete_experiment(incomplete: str) -> list[str]:
    """Experiments; none where the extra that has them is not installed."""
    try:
        from load.experiments.experiments import EXPERIMENTS
    except ImportError:
        return []
    return [name for name in EXPERIMENTS if name.startswith(incomplete)]


def _cluster(ctx: click.Context) -> ClusterState:
    """The state of the platform that the command addresses; empty if there is none."""
    given = ctx.params
    target = PlatformTarget.of(
        given.get("home"), redis_url=given.get("redis_url"), pool=given.get("pool") or "default"
    )
    try:
        return asyncio.run(target.cluster())
    except PilotlightError:
        return ClusterState()
