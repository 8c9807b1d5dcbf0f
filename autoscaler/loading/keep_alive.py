"""A fixed keep-alive: a model stays for so long after its last request, then goes.

What OpenWhisk and the other platforms of Shahrad et al. 2020, "Serverless in the Wild", section
4.1, do (10 minutes there). A model's own `keep-alive` annotation goes before the rule's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from autoscaler.loading.idle_copies import idle_copies
from autoscaler.planning.actions import Action, ActionReason, Demote
from autoscaler.planning.policy import LoadingPolicy
from registry.domain.model import Tier

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import PoolView


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Parameters of the rule."""

    keep_s: float = 600.0
    """How long a copy stays after the model's last request."""
    sink_to: Tier = Tier.DISK
    """Where it is kept then."""


def keep_alive(params: KeepAlive | None = None) -> LoadingPolicy[None]:
    """The rule with its parameters."""
    plan = partial(_plan, params or KeepAlive())
    return LoadingPolicy("keep-alive", None, plan, reads_demand=False)


def _plan(params: KeepAlive, view: PoolView, _: None) -> tuple[tuple[Action, ...], None]:
    actions = []
    for model in view.models:
        own_s = model.spec.policy.keep_alive_s
        keep_s = params.keep_s if own_s is None else own_s
        for copy in idle_copies(model, view):
            if copy.idle_s > keep_s:
                words = f"idle for {copy.idle_s:.0f} s, kept for {keep_s:g} s"
                actions.append(
                    Demote(model.key, copy.pod, params.sink_to, ActionReason.IDLE, words)
                )
    return tuple(actions), None
