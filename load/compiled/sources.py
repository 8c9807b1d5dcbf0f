"""Sources rewritten for mypyc: constructors of dataclasses written out.

mypyc leaves the constructors of dataclasses to the interpreter, which makes a run 30 % slower
(`docs/benchmarks.md`), evaluates the types of their fields on import, and refuses `slots`. The
rewritten sources behave the same in a simulation.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

VALUES: Final = frozenset({
    "Accelerator", "ApplicationSpec", "ClusterPlan",
    "InputTensor", "SneakPeekSpec", "LoadFailure", "ModelPlan", "ModelPolicy", "ModelRecord",
    "ModelSpec", "NodePlan", "PlacedPod", "PlacedReplica", "PlacementRecord", "PlannedModel",
    "PodInfo", "PodPlan", "Profile", "ProfilePoint", "QueueOptions", "ReservationRequest",
})  # fmt: skip
"""Dataclasses that are compared, hashed or replaced; none is made per request."""


def rewritten(sources: Mapping[str, str]) -> dict[str, str]:
    """The rewritten sources of modules, by path.

    Dataclasses other than `VALUES` become classes with a constructor, but without comparison, hash
    and text, and not frozen; a subclass takes only the fields of its base without a default.
    """
    trees = {path: ast.parse(source) for path, source in sources.items()}
    found = {path: _dataclasses(tree) for path, tree in trees.items()}
    for path, nodes in found.items():
        _keep_values(trees[path], [node for node in nodes if node.name in VALUES])
    dataclasses = [node for nodes in found.values() for node in nodes if node.name not in VALUES]
    bases = {node.name: node for node in dataclasses}  # only bases need unique names
    constructors = [_constructor(node, bases) for node in dataclasses]
    for node, constructor in zip(dataclasses, constructors, strict=True):
        _write_out(node, constructor)
    return {path: ast.unparse(tree) for path, tree in trees.items()}


def _dataclasses(tree: ast.Module) -> list[ast.ClassDef]:
    return [each for each in tree.body if isinstance(each, ast.ClassDef) and _is_dataclass(each)]


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(ast.unparse(each).startswith("dataclass") for each in node.decorator_list)


def _fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    return (each for each in node.body if isinstance(each, ast.AnnAssign))


def _options(field: ast.AnnAssign) -> dict[str | None, str]:
    """The arguments of `field(...)`, or the default."""
    value = field.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        return {each.arg: ast.unparse(each.value) for each in value.keywords}
    return {} if value is None else {"default": ast.unparse(value)}


def _constructor(node: ast.ClassDef, dataclasses: Mapping[str, ast.ClassDef]) -> ast.stmt:
    bases = [dataclasses[name] for each in node.bases if (name := ast.unparse(each)) in dataclasses]
    inherited = [
        ast.unparse(field.target)
        for base in bases
        for field in _fields(base)
        if not _options(field)
    ]
    head, named = ["self", *inherited], ["*"]
    body = [f"super().__init__({', '.join(inherited)})"] if bases else []
    for field in _fields(node):
        name, options = ast.unparse(field.target), _options(field)
        if options.get("init") == "False":
            continue
        parameter, value = f"{name}: {ast.unparse(field.annotation)}", name
        if "default_factory" in options:
            parameter += " | None = None"
            value = f"{options['default_factory']}() if {name} is None else {name}"
        elif "default" in options:
            parameter += f" = {options['default']}"
        (named if "kw_only" in options else head).append(parameter)
        body.append(f"self.{name} = {value}")
    if any(getattr(each, "name", "") == "__post_init__" for each in node.body):
        body.append("self.__post_init__()")
    parameters = ", ".join([*head, *(named if len(named) > 1 else [])])
    return ast.parse(f"def __init__({parameters}) -> None: " + "; ".join(body)).body[0]


def _write_out(node: ast.ClassDef, constructor: ast.stmt) -> None:
    for field in _fields(node):
        field.value = None
    node.body.append(constructor)
    node.decorator_list = []


def _keep_values(tree: ast.Module, values: Sequence[ast.ClassDef]) -> None:
    """Keep these as dataclasses, without `slots`, which mypyc gives to every class."""
    for node in values:
        for each in node.decorator_list:
            if isinstance(each, ast.Call):
                each.keywords = [option for option in each.keywords if option.arg != "slots"]
        node.body.append(_reduction(node))
    guarded = [each for each in tree.body if _is_for_types(each)] if values else []
    for block in guarded:  # the types of fields are evaluated
        at = tree.body.index(block)
        tree.body[at : at + 1] = block.body


def _reduction(node: ast.ClassDef) -> ast.stmt:
    """A method that pickles a value; mypyc's classes have none."""
    given = [field for field in _fields(node) if _options(field).get("init") != "False"]
    values = "".join(f"self.{ast.unparse(field.target)}, " for field in given)
    source = f"def __reduce__(self) -> tuple[object, ...]: return ({node.name}, ({values}))"
    return ast.parse(source).body[0]


def _is_for_types(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
