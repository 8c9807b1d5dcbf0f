"""The errors of a pod, and the HTTP status of each, which only the protocols use."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from common.inference_protocol import BodyTooLarge, InvalidRequest, PodError
from registry.domain.model import UNREADABLE


class InvalidExpression(InvalidRequest):
    """A chat template or tokenizer of the model raised an error for this input."""


class ExpressionStopped(InvalidRequest):
    """A chat template or tokenizer of the model exceeded its time or memory and was killed."""


class InferenceTooLarge(InvalidRequest):
    """The inference needs more working memory than one inference may take."""


class InputLost(PodError):
    """A tensor that a step's input refers to is not kept any more, or its pod is gone."""


class PromptTooLong(InvalidRequest):
    """The prompt and the requested new tokens exceed the model's context."""


class UnsupportedCoding(PodError):
    """The body is compressed in a way that is not read."""


class Unauthorized(PodError):
    """The request does not carry the pods' shared secret."""

    refusal = "secret"


class ModelNotFound(PodError):
    """The model is not declared."""


class ModelUnknown(PodError):
    """The pod has not heard of the model, and cannot ask the registry: another pod may know it."""

    refusal = "draining"
    retry_after_s = 1.0


class SlotsFull(PodError):
    """All request slots of the pod are taken."""

    refusal = "slots"
    retry_after_s = 1.0


class StepQueueFull(PodError):
    """The pod takes no further step of a workflow, or none of its namespace."""

    refusal = "step-queue"
    retry_after_s = 1.0


class QueueFull(PodError):
    """The device's queue is full."""

    refusal = "slots"
    retry_after_s = 1.0


class PodDraining(PodError):
    """The pod accepts no new requests."""

    refusal = "draining"


class PodEnded(PodError):
    """The pod's drain timeout passed before the request's response."""


class AlreadyBegun(PodError):
    """The request was sent again, but the pod had begun it the first time."""


class DeadlinePassed(PodError):
    """The request's deadline passed before its inference began."""

    refusal = "deadline"


class LoadFailed(PodError):
    """A model could not be loaded.

    `reason` is that of its condition: `Unreadable` where its files cannot be read or served as they
    are, else one of KServe's `lastFailureInfo.reason` values.
    """

    refusal = "load-failed"
    reason: ClassVar[str] = "ModelLoadFailed"


class StorageFailed(LoadFailed):
    """Object storage does not have the model, refused access, or closed the connection."""

    reason = UNREADABLE


class ModelInvalid(LoadFailed):
    """The model's files cannot be served as they are: corrupt, incomplete, or not what they say."""

    reason = UNREADABLE


class ModelUnsupported(ModelInvalid):
    """The model's files are of a kind that no engine here serves."""


class ModelChanged(ModelInvalid):
    """A file was replaced or deleted at its source, or does not match the source's checksum."""

    reason = LoadFailed.reason


class DiskFull(LoadFailed):
    """The node's disk, or the budget of its cache, has no room for the model."""


class ModelTooLarge(LoadFailed):
    """The model exceeds a whole budget, of memory or disk, of the pod or of its namespace."""

    refusal = "no-memory"


class DeviceFailed(LoadFailed):
    """The device or one of its libraries failed during the load; the files may be in order."""


class NeedsMissing(LoadFailed):
    """The model is declared with something that no pod has, see `ModelSpec.needs`."""

    reason = "NoSupportingRuntime"


class EngineMissing(LoadFailed):
    """The library that reads models of this format is not installed in the pod."""

    reason = "NoSupportingRuntime"


class ModelBroken(LoadFailed):
    """An inference of the model hung; the pod does not run the model for a while."""

    reason = "RuntimeUnhealthy"


class InferenceHung(PodError):
    """The request's own inference did not end within the model's time limit."""


class RequestHung(PodError):
    """An earlier inference of an equal request hung; no pod should try it."""


class ExpressionRefused(PodError):
    """A chat template or tokenizer of the model was stopped with an input as short as this one."""


class MemoryBusy(PodError):
    """Models in use did not release enough memory in time."""

    refusal = "no-memory"
    retry_after_s = 1.0


class DeviceFull(MemoryBusy):
    """The device's memory is exhausted, although the pod's budget is not."""

    def __init__(self, message: str, *, missing_bytes: int = 1) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes
        """How much less the device has than was needed, as far as it is known."""


class NoRoomToInfer(PodError):
    """The device has no memory for the inference itself; the model stays loaded."""

    refusal = "device-full"
    retry_after_s = 1.0


class NoDevice(PodError):
    """The configured device is not visible to the pod."""


class ModelInUse(PodError):
    """The model cannot be unloaded while requests use it."""

    retry_after_s = 1.0


class LoadRefused(PodError):
    """The registry did not grant the claim for the load, or revoked it."""

    refusal = "load-refused"
    retry_after_s = 1.0


class LoadCancelled(PodError):
    """The load was cancelled: the model was unloaded, or no request waits for it any more."""

    refusal = "load-failed"
    retry_after_s = 1.0


class HostTierRefused(PodError):
    """Tier `host` is disabled or has no room for the model."""


class RemoteInferenceFailed(PodError):
    """The predict pod did not respond; it may have executed the request."""


class RemotePodUnreachable(RemoteInferenceFailed):
    """No connection to the predict pod: the request was not executed there."""

    refusal = "unreachable"


class InferenceFailed(PodError):
    """The model raised an error."""


class ServerUnavailable(PodError):
    """The pod's model server does not answer, or has lost the model: nothing was executed."""

    refusal = "draining"
    retry_after_s = 1.0


class ServerLost(PodError):
    """The pod's model server ended in the request, which it may have executed."""


_ERRORS_OF: dict[HTTPStatus, tuple[type[PodError], ...]] = {
    HTTPStatus.BAD_REQUEST: (InvalidRequest,),
    HTTPStatus.UNAUTHORIZED: (Unauthorized,),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: (BodyTooLarge,),
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: (UnsupportedCoding,),
    HTTPStatus.NOT_FOUND: (ModelNotFound,),
    HTTPStatus.TOO_MANY_REQUESTS: (SlotsFull, StepQueueFull, QueueFull),
    HTTPStatus.SERVICE_UNAVAILABLE: (
        PodDraining, PodEnded, RequestHung, ExpressionRefused, LoadFailed, MemoryBusy,
        NoRoomToInfer, ModelInUse, LoadRefused, LoadCancelled, RemoteInferenceFailed,
        ServerUnavailable, ServerLost, ModelUnknown, ModelChanged,
    ),
    HTTPStatus.UNPROCESSABLE_ENTITY: (ModelInvalid,),
    HTTPStatus.NOT_IMPLEMENTED: (NeedsMissing, EngineMissing, ModelUnsupported),
    HTTPStatus.BAD_GATEWAY: (AlreadyBegun,),
    HTTPStatus.FAILED_DEPENDENCY: (InputLost,),
    HTTPStatus.GATEWAY_TIMEOUT: (DeadlinePassed, InferenceHung),
    HTTPStatus.INSUFFICIENT_STORAGE: (ModelTooLarge, DiskFull, HostTierRefused),
}  # fmt: skip
_STATUS_OF = {error: status for status, errors in _ERRORS_OF.items() for error in errors}


def status_of(error: PodError) -> HTTPStatus:
    """The status of the error's nearest listed class; 500 for all others."""
    for kind in type(error).__mro__:
        if kind in _STATUS_OF:
            return _STATUS_OF[kind]
    return HTTPStatus.INTERNAL_SERVER_ERROR
