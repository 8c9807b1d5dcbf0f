"""What can go wrong in a pod, and which HTTP status each of it becomes at the edge.

The core raises these and knows no status codes; `status_of` is read by the HTTP layer alone.
"""

from __future__ import annotations

from http import HTTPStatus


class RuntimePackageError(Exception):
    """Root of the runtime's errors. `refusal` says why nothing was executed, where that is so."""

    refusal: str | None = None
    retry_after_s: float | None = None


class InvalidRequest(RuntimePackageError):
    """The request's body or headers are wrong; the message says what was seen and is allowed."""


class PromptTooLong(InvalidRequest):
    """The prompt, with what is to follow it, has more tokens than the model takes."""


class BodyTooLarge(RuntimePackageError):
    """The body has more bytes than the pod takes."""


class ModelNotFound(RuntimePackageError):
    """No such model is declared."""


class SlotsFull(RuntimePackageError):
    """Every request slot of the pod is taken."""

    refusal = "slots"
    retry_after_s = 1.0


class QueueFull(RuntimePackageError):
    """More work waits for the device than the pod lets wait."""

    refusal = "slots"
    retry_after_s = 1.0


class PodDraining(RuntimePackageError):
    """The pod finishes what it has and takes nothing new."""

    refusal = "draining"


class PodEnded(RuntimePackageError):
    """The pod's time to drain was over before the request was answered."""


class DeadlinePassed(RuntimePackageError):
    """The request's deadline was over before its inference began."""

    refusal = "deadline"


class LoadFailed(RuntimePackageError):
    """A model could not be loaded; `reason` is one of KServe's `lastFailureInfo.reason` values."""

    refusal = "load-failed"
    reason = "ModelLoadFailed"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StorageFailed(LoadFailed):
    """Object storage has no such model, refused access, or broke off."""


class ModelInvalid(LoadFailed):
    """The model's files are there but cannot be served: corrupt, incomplete, or unknown."""


class ModelChanged(ModelInvalid):
    """A file of the model was replaced or deleted at its source, or is not what the source says."""


class DiskFull(LoadFailed):
    """The node's disk, or the budget of its cache, has no room for the model."""


class ModelTooLarge(LoadFailed):
    """The model is larger than the whole memory budget of the pod."""

    refusal = "no-memory"


class ModelBroken(LoadFailed):
    """An inference of the model did not end; the pod runs nothing of it for a while."""

    reason = "RuntimeUnhealthy"


class InferenceHung(RuntimePackageError):
    """The request's own inference did not end in the model's time; it was executed in part."""


class MemoryBusy(RuntimePackageError):
    """The model would fit, but models in use hold the memory and did not let go in time."""

    refusal = "no-memory"
    retry_after_s = 1.0


class DeviceFull(MemoryBusy):
    """The device itself, not the pod's budget, has no room for the model now."""


class NoRoomToInfer(RuntimePackageError):
    """The device had no room for what this inference needs beside its model: there is no answer."""

    refusal = "device-full"
    retry_after_s = 1.0


class NoDevice(RuntimePackageError):
    """The pod is told to use a device that its environment does not show."""


class ModelInUse(RuntimePackageError):
    """The model cannot be taken away while requests use it."""

    retry_after_s = 1.0


class LoadRefused(RuntimePackageError):
    """The registry gave no claim for the load, or took it back."""

    refusal = "load-failed"
    retry_after_s = 1.0


class LoadCancelled(RuntimePackageError):
    """The load was given up before it was done: it was unloaded, or nobody waits any more."""

    refusal = "load-failed"
    retry_after_s = 1.0


class HostTierRefused(RuntimePackageError):
    """The model cannot be kept in tier `host`: it is off, or has no room."""


class RemoteInferenceFailed(RuntimePackageError):
    """The predict pod did not answer; whether it executed the request is not known."""


class RemotePodUnreachable(RemoteInferenceFailed):
    """No connection to the predict pod could be made, so nothing was executed there."""

    refusal = "unreachable"


class InferenceFailed(RuntimePackageError):
    """The model itself raised an error: a true fault."""


STATUS_OF: dict[type[RuntimePackageError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ModelNotFound: HTTPStatus.NOT_FOUND,
    SlotsFull: HTTPStatus.TOO_MANY_REQUESTS,
    QueueFull: HTTPStatus.TOO_MANY_REQUESTS,
    PodDraining: HTTPStatus.SERVICE_UNAVAILABLE,
    PodEnded: HTTPStatus.SERVICE_UNAVAILABLE,
    DeadlinePassed: HTTPStatus.GATEWAY_TIMEOUT,
    InferenceHung: HTTPStatus.GATEWAY_TIMEOUT,
    ModelTooLarge: HTTPStatus.INSUFFICIENT_STORAGE,
    DiskFull: HTTPStatus.INSUFFICIENT_STORAGE,
    LoadFailed: HTTPStatus.SERVICE_UNAVAILABLE,
    MemoryBusy: HTTPStatus.SERVICE_UNAVAILABLE,
    NoRoomToInfer: HTTPStatus.SERVICE_UNAVAILABLE,
    ModelInUse: HTTPStatus.SERVICE_UNAVAILABLE,
    LoadRefused: HTTPStatus.SERVICE_UNAVAILABLE,
    LoadCancelled: HTTPStatus.SERVICE_UNAVAILABLE,
    HostTierRefused: HTTPStatus.INSUFFICIENT_STORAGE,
    RemoteInferenceFailed: HTTPStatus.SERVICE_UNAVAILABLE,
    InferenceFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""An error has the status of its nearest listed class."""


def status_of(error: RuntimePackageError) -> HTTPStatus:
    """The HTTP status that `error` is answered with."""
    for kind in type(error).__mro__:
        if kind in STATUS_OF:
            return STATUS_OF[kind]
    return HTTPStatus.INTERNAL_SERVER_ERROR
