"""Sources that are rewritten for mypyc mean what they meant."""

from __future__ import annotations

import ast
import pickle
import sys
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

import pytest

from load.compiled.build import ROOT, compiled_paths
from load.compiled.sources import VALUES, rewritten

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass, field

@dataclass(slots=True)
class Base:
    name: str
    size: int
    left: int = 7
    \"\"\"Documented.\"\"\"
    late: float = field(default=0.5)

    def doubled(self) -> int:
        return 2 * self.size

@dataclass(eq=False, slots=True)
class Special(Base):
    holder: str = field(kw_only=True)
    tries: int = 0
    waiting: list[int] = field(default_factory=list)

@dataclass(slots=True)
class Derived:
    name: str
    upper: str = field(init=False)

    def __post_init__(self) -> None:
        self.upper = self.name.upper()
"""


@pytest.fixture(name="module")
def _module() -> dict[str, Any]:
    text = rewritten({"a.py": SOURCE})["a.py"]
    assert "@dataclass" not in text
    namespace: dict[str, Any] = {}
    exec(compile(text, "a.py", "exec"), namespace)
    return namespace


def test_a_constructor_takes_fields_by_position_and_name_with_their_defaults(
    module: dict[str, Any],
) -> None:
    made = module["Base"]("m", 2, late=0.25)
    assert (made.name, made.size, made.left, made.late) == ("m", 2, 7, 0.25)
    assert made.doubled() == 4


def test_a_subclass_takes_what_its_base_needs_and_its_own(module: dict[str, Any]) -> None:
    made = module["Special"]("m", 2, 3, holder="h")
    assert (made.name, made.size, made.left) == ("m", 2, 7)
    assert (made.holder, made.tries) == ("h", 3)
    with pytest.raises(TypeError):
        module["Special"]("m", 2, 3, "h")


def test_fields_that_are_computed_are_no_arguments(module: dict[str, Any]) -> None:
    assert module["Derived"]("m").upper == "M"
    with pytest.raises(TypeError):
        module["Derived"]("m", "M")


def test_classes_of_one_name_in_two_modules_are_both_rewritten() -> None:
    other = SOURCE.replace("size: int\n", "weight: int\n").replace("self.size", "self.weight")
    for text in rewritten({"a.py": SOURCE, "b.py": other}).values():
        assert "@dataclass" not in text
        namespace: dict[str, Any] = {}
        exec(compile(text, "module", "exec"), namespace)
        assert namespace["Base"]("m", 2).doubled() == 4


def test_values_of_factories_are_not_shared(module: dict[str, Any]) -> None:
    first, second = module["Special"]("m", 2, holder="h"), module["Special"]("n", 2, holder="h")
    first.waiting.append(1)
    assert second.waiting == []


def test_a_factory_s_field_may_be_given(module: dict[str, Any]) -> None:
    assert module["Special"]("m", 2, holder="h", waiting=[5]).waiting == [5]


def test_values_stay_dataclasses_that_compare_and_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    source = (ROOT / "registry" / "domain" / "pod.py").read_text()
    module = ModuleType("pod")
    monkeypatch.setitem(sys.modules, "pod", module)
    exec(rewritten({"registry/domain/pod.py": source})["registry/domain/pod.py"], vars(module))
    assert module.PodInfo("p", "a:1", "n") == module.PodInfo("p", "a:1", "n")
    assert pickle.loads(pickle.dumps(module.PodInfo("p", "a:1", "n", slots=3))).slots == 3
    assert not is_dataclass(module.Samples)


def test_only_values_are_left_as_dataclasses() -> None:
    texts = rewritten({path: (ROOT / path).read_text() for path in compiled_paths()})
    left = set()
    for path, text in texts.items():
        compile(text, path, "exec")
        left |= {
            node.name
            for node in ast.parse(text).body
            if isinstance(node, ast.ClassDef)
            and "dataclass" in map(_decorator, node.decorator_list)
        }
    assert left == VALUES


def _decorator(node: ast.expr) -> str:
    return ast.unparse(node).partition("(")[0]
