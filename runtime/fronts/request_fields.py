"""The fields of messages about requests and lessons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelName
from runtime.wire.request_head import RequestHead

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.loading.processors import ProcessorFiles

_SAME_FIELDS = (
    "generation",
    "reservation",
    "load_token",
    "attempt",
    "is_resent",
    "deadline_s",
    "body_bytes",
)


def head_fields(head: RequestHead) -> dict[str, Any]:
    """What the device process needs of a head; processes of a machine share the monotonic clock."""
    fields = {name: getattr(head, name) for name in _SAME_FIELDS}
    return {**fields, "model": head.model.path_segment, "request": head.id}


def head_from(fields: Mapping[str, Any]) -> RequestHead:
    model = ModelName.from_path_segment(fields["model"])
    return RequestHead(
        model=model,
        response_model_name=model.name,
        id=fields["request"],
        predict_address=None,
        is_infer_stage=False,
        simulated_work={},
        v2_header_length=None,
        **{name: fields[name] for name in _SAME_FIELDS},
    )


def lesson_fields(
    number: int, key: str | None = None, files: ProcessorFiles | None = None
) -> dict[str, Any]:
    """Without files: the front passes the model's requests on."""
    return {
        "id": number, "key": key, "folder": files and str(files.folder),
        "task": files and files.task,
    }  # fmt: skip
