"""Which models share which accelerator: the planners by name, plug-ins included. All pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from autoscaler.placement.plan import Plan
from autoscaler.placement.predicted_goodput import predicted_goodput
from registry.domain.model import PlacementName
from registry.domain.pod import Profile
from registry.errors import PluginError
from registry.policy_names import PLACEMENT, PolicyNames

PLANNERS: Final[Mapping[str, Plan]] = {PlacementName.PREDICTED_GOODPUT: predicted_goodput}


def planner_names() -> list[str]:
    return [name for name in PLACEMENT if name != PlacementName.OFF]


def planner_of(name: str) -> Plan:
    """The planner of this name. Raises PluginError."""
    if name in PLANNERS:
        return PLANNERS[name]
    found: Plan = PLACEMENT.load(name)
    if not callable(found):
        raise PluginError(f"planner {name} must be a function, was {found!r}")
    return found


PROFILE_FITS: Final = PolicyNames("pilotlight.profile_fits")


@dataclass(frozen=True, slots=True)
class ProfileFit:
    """What a plug-in fits to measured profiles: JSON in `Profile.fits`, which only it reads."""

    title: str
    """In messages."""
    fit: Callable[[Profile, Mapping[str, float]], dict[str, Any] | None]
    """To a profile, and to what the neighbours of its pairs keep busy, in %, by name; None: too
    little was measured."""
    is_valid: Callable[[Any], bool]
    """Whether a value in an exported profile is such a fit."""


def profile_fits() -> dict[str, ProfileFit]:
    """Of the installed plug-ins, by name. Raises PluginError."""
    return {name: PROFILE_FITS.load(name) for name in PROFILE_FITS}
