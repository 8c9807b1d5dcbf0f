"""YAML without silent losses: text that PyYAML drops or misreads without an error is refused."""

from __future__ import annotations

from typing import Any, Final

import yaml

from registry.errors import InvalidYaml

_RAISED = (
    yaml.YAMLError, ValueError, LookupError, ArithmeticError, AttributeError, TypeError,
    RecursionError,
)  # fmt: skip
"""What PyYAML raises at invalid input: its tags for times, numbers and booleans check little."""


MAX_DEPTH: Final = 64
"""Of brackets and braces: PyYAML's time grows with its square."""
MAX_FIELDS: Final = 10_000
"""Of one mapping: merge keys of merge keys would multiply."""


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, text that JSON cannot carry, and what takes long to read."""

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        if self.flow_level >= MAX_DEPTH:
            raise yaml.scanner.ScannerError(
                None, None, f"more than {MAX_DEPTH} brackets inside each other", self.get_mark()
            )
        super().fetch_flow_collection_start(token)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_FIELDS:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {MAX_FIELDS} fields", node.start_mark
            )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            key = self.construct_object(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise yaml.constructor.ConstructorError(
                None, None, f"half a surrogate pair in {value!r}", node.start_mark
            )
        return value


def read_yaml(text: str) -> list[Any]:
    """The documents of a text, without empty ones. Raises InvalidYaml."""
    try:
        loaded = yaml.load_all(text, Loader=_Loader)
        return [document for document in loaded if document is not None]
    except _RAISED as error:
        raise InvalidYaml(f"not valid YAML: {' '.join(str(error).split())}") from error
