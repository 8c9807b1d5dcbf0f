"""Keep-alive: a model is demoted a fixed time after its last request.

The policy of OpenWhisk and of the other platforms in Shahrad et al. 2020, "Serverless in the Wild",
section 4.1 (10 minutes there). A model's `keep-alive` annotation takes precedence.
"""

from dataclasses import dataclass
from functools import partial

from autoscaler.placement.idle import idle_copies
from autoscaler.planning.policy import Action, ActionReason, Demote, LoadingPolicy
from autoscaler.planning.pool_view import PoolView
from registry.domain.model import Tier


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Parameters of the policy."""

    keep_s: float = 600.0
    """Time after the model's last request."""


def keep_alive(params: KeepAlive | None = None) -> LoadingPolicy[None]:
    plan = partial(_plan, params or KeepAlive())
    return LoadingPolicy("keep-alive", None, plan, reads_demand=False)


def _plan(params: KeepAlive, view: PoolView, _: None) -> tuple[tuple[Action, ...], None]:
    actions = []
    for model in view.models:
        own_s = model.spec.policy.keep_alive_s
        keep_s = params.keep_s if own_s is None else own_s
        for copy in idle_copies(model, view):
            if copy.idle_s > keep_s:
                detail = f"idle for {copy.idle_s:.0f} s, kept for {keep_s:g} s"
                actions.append(Demote(model.key, copy.pod, Tier.DISK, ActionReason.IDLE, detail))
    return tuple(actions), None
