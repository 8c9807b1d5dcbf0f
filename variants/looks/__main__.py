"""The process that looks at data: `python -m variants.looks`, its input a gateway's socket.

Files are read in a thread, so that looks at other applications' data go on.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from registry.domain.application import ApplicationSpec
from variants.function_process import serve
from variants.looks.client import Look, LookOutcome
from variants.looks.request_rows import MismatchedBody, UnreadableBody, read_rows
from variants.looks.trained_file import InvalidSneakPeek, SneakPeekModel, fetch, read_for
from variants.planning.utility import profiled_accuracy


@dataclass(slots=True)
class Looking:
    """The trained looks in use, with their accuracies, by application."""

    _models: dict[str, tuple[ApplicationSpec, SneakPeekModel, float]] = field(default_factory=dict)

    def forget(self, application: str) -> None:
        """The application's data is not to be looked at any more."""
        self._models.pop(application, None)

    def load(self, application: str, spec: ApplicationSpec) -> str:
        """Read an application's files; why they cannot be used, empty: they are in use."""
        self.forget(application)
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
    serve({"look": looking.look}, slow={"load": looking.load, "forget": looking.forget})
