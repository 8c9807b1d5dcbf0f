"""What the registry has in Redis: key patterns, commands (for access lists), operations."""

import re
from collections.abc import Iterator

from registry.redis.transactions import Transactions
from tests.servers import REPOSITORY
from tests.surface.recorded import assert_recorded

_KEY = re.compile(r"\bkey\(((?:[^()]|\([^()]*\))*)\)|\bprefix \.\. ('[^']*')")
_OPERATION = re.compile(r"^(?:local )?function op\.(\w+\([^)]*\))", re.MULTILINE)
_COMMAND = re.compile(r"redis\.p?call\('(\w+)'")


def _lines() -> Iterator[str]:
    scripts = sorted(REPOSITORY.glob("registry/redis/**/*.lua"))
    text = "\n".join(each.read_text() for each in scripts)
    prefix = Transactions("redis://127.0.0.1", "POOL", "test").prefix
    keys = {_pattern(found[1] or found[2]) for found in _KEY.finditer(text)}
    yield from (f"key {prefix}{each}" for each in sorted(keys - {"*"}))
    yield from (f"command {each}" for each in sorted(set(_COMMAND.findall(text))))
    yield from (f"operation {each}" for each in sorted(_OPERATION.findall(text)))


def _pattern(expression: str) -> str:
    """A key's name, with `*` in place of what is computed."""
    parts = [each.strip() for each in expression.split(" .. ")]
    return "".join(each.strip("'") if each.startswith("'") else "*" for each in parts)


def test_keys_commands_and_operations_are_as_recorded() -> None:
    assert_recorded("redis", _lines())
