"""What can go wrong between the controller and a cluster."""

from __future__ import annotations


class KubernetesError(Exception):
    """Root of the errors of this package."""


class ClusterUnreachable(KubernetesError):
    """The API server did not answer; it is asked again later."""


class Changed(KubernetesError):
    """The object is not what it was when the decision was made: decide again."""


class Gone(KubernetesError):
    """The object does not exist any more."""


class Denied(KubernetesError):
    """The API server refused a call; the message says which and why."""


class PoolNotFound(KubernetesError):
    """No InferenceService, or more than one, is the pool."""
