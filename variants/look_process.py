"""The process that looks at data: rows of bodies, and their nearest examples.

Bodies that it cannot read are left to the pods, which respond with the error of the protocol; only
what no variant of the application can answer is a mistake. Files are read in a thread beside looks.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.inference_protocol import PodError
from common.inference_protocol.bodies import V2Request, decode_document, split_body
from common.inference_protocol.tensors import named_arrays
from common.shown_value import shown
from registry.domain.application import ApplicationSpec, InputTensor
from variants.function_process import serve
from variants.look_client import Look, LookOutcome
from variants.look_files import InvalidSneakPeek, SneakPeekModel, fetch, read_for
from variants.planning.window import profiled_accuracy

MAX_ROWS: Final = 64
"""Of a request that is looked at; larger ones take no part in what a look could gain."""


class UnreadableBody(Exception):
    """The body is not one that this module reads."""


class MismatchedBody(Exception):
    """The body has other tensors than the application, or numbers that are not finite."""


class RequestRows(NamedTuple):
    rows: NDArray[np.float32]
    """[rows, features], the inputs side by side in the order of `names`."""
    is_v2: bool = False
    request_id: str | None = None
    is_answerable: bool = True


def read_rows(
    body: bytes,
    json_length: str | None,
    names: Sequence[str],
    declared: Sequence[InputTensor],
    output: str,
) -> RequestRows:
    """Raises UnreadableBody, MismatchedBody."""
    try:
        document, tail = split_body(body, json_length)
        if not isinstance(document.get("inputs"), list):
            tensors = _v1_tensors(document.get("instances"), names)
            return RequestRows(_side_by_side(tensors, names, declared))
        request = decode_document(document, tail) if document["inputs"] else V2Request(())
    except PodError as error:
        raise UnreadableBody(str(error)) from error
    rows = _side_by_side(named_arrays(request.inputs), names, declared)
    is_answerable = not request.is_binary and all(
        each.name == output and not each.is_binary for each in request.outputs
    )
    return RequestRows(rows, True, request.id, is_answerable)


def _v1_tensors(instances: Any, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Instances are rows of the only input, or objects with one row of each input."""
    if not isinstance(instances, list):
        raise UnreadableBody("the body has neither inputs nor instances")
    try:
        if instances and all(isinstance(each, dict) for each in instances):
            shared = set(instances[0]).intersection(*instances[1:])
            return {
                name: np.asarray([each[name] for each in instances], np.float32)
                for name in sorted(shared)
            }
        if len(names) == 1:
            return {names[0]: np.asarray(instances, np.float32)}
    except (TypeError, ValueError, OverflowError) as error:
        raise UnreadableBody(f"the instances are no numbers: {shown(instances)}") from error
    raise UnreadableBody("instances must be objects where the application has several inputs")


def _side_by_side(
    tensors: Mapping[str, NDArray[Any]], names: Sequence[str], declared: Sequence[InputTensor]
) -> NDArray[np.float32]:
    if strings := [name for name, values in tensors.items() if values.dtype.hasobject]:
        raise UnreadableBody(f"the input {strings[0]!r} has no numbers")
    missing = [name for name in names if name not in tensors]
    if missing:
        raise MismatchedBody(
            f"the application's input {missing[0]!r} is missing; the request has "
            f"{', '.join(map(repr, sorted(tensors))) or 'none'}"
        )
    shapes = {each.name: list(each.shape) for each in declared}
    parts = []
    for name in names:
        values = tensors[name]
        if values.ndim < 1 or not values.size:
            raise UnreadableBody(f"input {name!r} has no rows")
        if name in shapes and list(values.shape[1:]) != shapes[name][1:]:
            raise MismatchedBody(
                f"input {name!r} must have the shape {shapes[name]}, was {list(values.shape)}"
            )
        parts.append(values.reshape(len(values), -1))
        wrong = np.flatnonzero(~np.isfinite(parts[-1].astype(np.float64, copy=False)).all(axis=1))
        if len(wrong):
            raise MismatchedBody(f"input {name!r} must be finite, was not in row {wrong[0]}")
    if {len(part) for part in parts} - set(range(1, MAX_ROWS + 1)) or len(set(map(len, parts))) > 1:
        raise UnreadableBody("the inputs have different numbers of rows, or too many")
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")


@dataclass(slots=True)
class Looking:
    """The trained looks in use, with their accuracies, by application."""

    _models: dict[str, tuple[ApplicationSpec, SneakPeekModel, float]] = field(default_factory=dict)

    def load(self, application: str, spec: ApplicationSpec) -> str:
        """Read an application's files; why they cannot be used, empty: they are in use."""
        self._models.pop(application, None)
        assert spec.sneak_peek is not None
        try:
            with tempfile.TemporaryDirectory() as folder:
                model = read_for(spec, fetch(spec.sneak_peek.uri, Path(folder)))
        except InvalidSneakPeek as error:
            return str(error)
        self._models[application] = (spec, model, profiled_accuracy(model.confusion))
        return ""

    def look(self, application: str, body: bytes, json_length: str | None) -> Look:
        if application not in self._models:
            return Look(LookOutcome.UNREADABLE)
        spec, model, accuracy = self._models[application]
        try:
            read = read_rows(body, json_length, model.inputs, spec.inputs, spec.output)
            width = model.examples.centre.shape[0]
            if read.rows.shape[1] != width:
                raise MismatchedBody(
                    f"the inputs must have {width} numbers per row, were {read.rows.shape[1]}"
                )
        except MismatchedBody as error:
            return Look(LookOutcome.SEEN, accuracy, problem=str(error))
        except UnreadableBody:
            return Look(LookOutcome.UNREADABLE, accuracy)
        rows = tuple(map(tuple, model.examples.evidence(read.rows).tolist()))
        return Look(
            LookOutcome.SEEN, accuracy, rows, read.is_v2, read.request_id, read.is_answerable
        )


if __name__ == "__main__":
    looking = Looking()
    serve({"look": looking.look}, slow={"load": looking.load})
