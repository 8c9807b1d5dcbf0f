"""Applications: a task with a deadline, and how the gateway chooses among its variants.

Value types only; `registry.inference_service` parses YAML into them.
"""

from __future__ import annotations

from enum import StrEnum


class Penalty(StrEnum):
    """How utility falls once a deadline is missed; Wolfrath et al. 2025, section 6.1."""

    SIGMOID = "sigmoid"
    LINEAR = "linear"
    STEP = "step"
    NONE = "none"


class Prior(StrEnum):
    """What is known of the class frequencies before the data is seen; section 6.3.3."""

    UNINFORMATIVE = "uninformative"
    WEAK = "weak"
    STRONG = "strong"


class SelectionPolicy(StrEnum):
    """Selection policies of applications, as declared and as in `x-pilotlight-policy`."""

    MAX_ACCURACY_EDF = "max-accuracy-edf"
    LO_EDF = "lo-edf"
    LO_PRIORITY = "lo-priority"
    GROUPED = "grouped"
    SNEAKPEEK = "sneakpeek"
    EXACT = "exact"
    REFINED = "refined"
