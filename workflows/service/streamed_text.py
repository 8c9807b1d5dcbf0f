"""The text of a step whose code iterates it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows.service.step_errors import StepError
from workflows.service.tensors import BYTES, plain_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workflows.service.tensors import StoredTensor


class StreamedText:
    """A text as a model generates it, perhaps again after its pod was lost."""

    def __init__(self) -> None:
        self.value = ""
        self.differs = False
        """Another attempt gave another text than the one before."""
        self._before = ""

    def begin(self) -> None:
        """An attempt generates the text from its beginning."""
        self._before = max(self._before, self.value, key=len)
        self.value = ""

    def append(self, piece: str) -> None:
        self.value += piece
        if not self._before.startswith(self.value) and not self.value.startswith(self._before):
            self.differs = True


def text_of(model: str, outputs: Mapping[str, StoredTensor]) -> str:
    """The text in the outputs of a step that has ended. Raises StepError where there is none."""
    texts = {name: each for name, each in outputs.items() if each.datatype == BYTES}
    if "text" in texts or len(texts) == 1:
        value = plain_value(texts.get("text") or next(iter(texts.values())))
        return value if isinstance(value, str) else "\n".join(map(str, value))
    raise StepError(
        f"`async for` iterates a text; the outputs of model {model} are: "
        f"{', '.join(sorted(outputs))}", "unknown-output", 422,
    )  # fmt: skip
