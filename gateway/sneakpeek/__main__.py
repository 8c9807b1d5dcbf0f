"""The process that looks at data: `python -m gateway.sneakpeek`, its input a gateway's socket.

Files are read in a thread, so that looks at other applications' data go on.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from gateway.function_process import serve
from gateway.selection.utility import profiled_accuracy
from gateway.sneakpeek.client import Loaded, Seen
from gateway.sneakpeek.request_rows import MismatchedBody, UnreadableBody, read_rows
from gateway.sneakpeek.trained_file import InvalidSneakPeek, SneakPeekModel, fetch, read_for
from registry.domain.application import ApplicationSpec


@dataclass(slots=True)
class Looking:
    """The trained looks in use, by application."""

    _models: dict[str, tuple[ApplicationSpec, SneakPeekModel]] = field(default_factory=dict)

    def forget(self, application: str) -> None:
        """The application's data is not to be looked at any more."""
        self._models.pop(application, None)

    def load(self, application: str, spec: ApplicationSpec) -> Loaded:
        """Read an application's files."""
        self.forget(application)
        assert spec.sneak_peek is not None
        try:
            with tempfile.TemporaryDirectory() as folder:
                model = read_for(spec, fetch(spec.sneak_peek.uri, Path(folder)))
        except InvalidSneakPeek as error:
            return Loaded(problem=str(error))
        self._models[application] = (spec, model)
        return Loaded(profiled_accuracy(model.confusion))

    def look(self, application: str, body: bytes, json_length: str | None) -> Seen:
        found = self._models.get(application)
        if found is None:
            return Seen()
        spec, model = found
        try:
            read = read_rows(body, json_length, model.inputs, spec.inputs, spec.output)
            width = model.examples.centre.shape[0]
            if read.rows.shape[1] != width:
                raise MismatchedBody(
                    f"the inputs must have {width} numbers per row, were {read.rows.shape[1]}"
                )
        except MismatchedBody as error:
            return Seen(problem=str(error))
        except UnreadableBody:
            return Seen()
        evidence = model.examples.evidence(read.rows)
        return Seen(
            tuple(map(tuple, evidence.tolist())), read.is_v2, read.request_id, read.is_answerable
        )


if __name__ == "__main__":
    looking = Looking()
    serve({"look": looking.look}, slow={"load": looking.load, "forget": looking.forget})
