"""The task of a model that an engine of its own runs: texts pass through, the engine tokenizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor, bytes_tensor, check_item_count
from registry.domain.model import EngineChoice
from runtime.engines.networks.configuration import read_json
from runtime.errors import InferenceFailed
from runtime.tasks.server_task import ServerBatching
from runtime.tasks.task import Processor, texts_of
from runtime.tasks.text import TEXT_TYPE
from runtime.tasks.text_generation import new_tokens


class EngineTask(Processor):
    """V1 and V2 of generated texts, as our own engine has them."""

    answers_openai = True

    def __init__(self, folder: Path, engine: EngineChoice) -> None:
        """`folder`: of the model's small files."""
        self._engine = engine
        self.batching = ServerBatching()
        self._new_tokens = new_tokens(folder)
        path = folder / "generation_config.json"
        samples = path.exists() and read_json(path).get("do_sample")
        self._sampling: dict[str, object] = {} if samples else {"temperature": 0}

    @property
    def platform(self) -> str:
        return str(self._engine)

    def input_types(self) -> list[dict[str, Any]]:
        return [TEXT_TYPE]

    def output_types(self) -> list[dict[str, Any]]:
        return [TEXT_TYPE]

    def read_instances(self, instances: Sequence[Any]) -> Sequence[Tensor]:
        check_item_count(len(instances))
        if wrong := [each for each in instances if not isinstance(each, str)]:
            raise InvalidRequest(f"each instance must be a text, one was {wrong[0]!r:.100}")
        return [bytes_tensor("text", [each.encode() for each in instances])]

    def completion(self, model: str, inputs: Sequence[Tensor]) -> dict[str, object]:
        """The body that asks the engine; raises InvalidRequest."""
        if len(inputs) != 1:
            raise InvalidRequest(f"the model takes one tensor of texts, got {len(inputs)}")
        texts = texts_of(inputs[0])
        if not texts or not all(texts):
            raise InvalidRequest("a text to continue must not be empty")
        return {"model": model, "prompt": texts, "max_tokens": self._new_tokens, **self._sampling}

    def texts(self, answer: Any) -> tuple[Tensor, ...]:
        """The outputs in the engine's answer; raises InferenceFailed."""
        try:
            choices = sorted(answer["choices"], key=lambda each: each["index"])
            return (bytes_tensor("text", [each["text"].encode() for each in choices]),)
        except (KeyError, TypeError, AttributeError) as error:
            raise InferenceFailed(f"the engine's response has no texts: {answer!r:.200}") from error

    def infer(self, network: Any, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        raise NotImplementedError("the engine infers")

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        return [value.decode() for value in outputs[0].data]

    def warm_up(self, network: Any) -> None:
        """Nothing: the engine has warmed up when it answers."""
