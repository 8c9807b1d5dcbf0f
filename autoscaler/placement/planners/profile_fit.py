"""What a plug-in fits to measured profiles, beside their batches, shares and pairs.

A profile keeps each fit as JSON under the plug-in's name (`Profile.fits`), which only the plug-in
reads: `research/placement/igniter_file.py` has iGniter's coefficients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.domain.pod import Profile
from registry.plugins import PolicyNames

PROFILE_FITS: Final = PolicyNames("pilotlight.profile_fits")


@dataclass(frozen=True, slots=True)
class ProfileFit:
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
