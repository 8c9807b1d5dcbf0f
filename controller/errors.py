"""Errors of the controller's work with the cluster. Class names are metric labels."""


class KubernetesError(Exception):
    """Root of the errors of this package."""


class ClusterUnreachable(KubernetesError):
    """The API server did not respond, or failed. Retried later."""


class Changed(KubernetesError):
    """The object has changed since it was read: read it again."""


class Gone(KubernetesError):
    """The object does not exist."""


class Denied(KubernetesError):
    """The API server refused the call."""


class PoolNotFound(KubernetesError):
    """No InferenceService, or more than one, has the pool's label."""
