"""Sources as mypyc compiles them well: constructors written out, views that are the real classes.

mypyc leaves the constructors of dataclasses to the interpreter and looks up their fields' types
when the module is imported, and it calls methods of protocols by name. What is written here has the
same meaning for a simulation, in which every view of a cluster is the registry's copy.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VIEWS: Final = {"ClusterView": "ClusterState", "PodView": "PodState"}
"""Protocols of `gateway.policies.views`, and the classes of `registry.cluster` that fit them."""


def rewritten(sources: Mapping[str, str]) -> dict[str, str]:
    """The sources of modules by path, rewritten.

    Dataclasses become classes that have a constructor but no comparison, hash or text, and cannot
    be frozen; a subclass takes only those fields of its base that have no default.
    """
    trees = {path: ast.parse(source) for path, source in sources.items()}
    dataclasses = [
        node
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and _is_dataclass(node)
    ]
    bases = {node.name: node for node in dataclasses}  # only bases need names of their own
    constructors = [_constructor(node, bases) for node in dataclasses]
    for node, constructor in zip(dataclasses, constructors, strict=True):
        _write_out(node, constructor)
    for tree in trees.values():
        _use_real_views(tree)
    return {path: ast.unparse(tree) for path, tree in trees.items()}


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(ast.unparse(each).startswith("dataclass") for each in node.decorator_list)


def _fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    return (each for each in node.body if isinstance(each, ast.AnnAssign))


def _options(field: ast.AnnAssign) -> dict[str | None, str]:
    """What `field(...)` says of a field, or its default."""
    value = field.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        return {each.arg: ast.unparse(each.value) for each in value.keywords}
    return {} if value is None else {"default": ast.unparse(value)}


def _constructor(node: ast.ClassDef, dataclasses: Mapping[str, ast.ClassDef]) -> ast.stmt:
    bases = [dataclasses[name] for each in node.bases if (name := ast.unparse(each)) in dataclasses]
    handed_on = [
        ast.unparse(field.target)
        for base in bases
        for field in _fields(base)
        if not _options(field)
    ]
    head, named = ["self", *handed_on], ["*"]
    body = [f"super().__init__({', '.join(handed_on)})"] if bases else []
    for field in _fields(node):
        name, options = ast.unparse(field.target), _options(field)
        if "default_factory" in options:
            body.append(f"self.{name} = {options['default_factory']}()")
            continue
        default = f" = {options['default']}" if "default" in options else ""
        parameter = f"{name}: {ast.unparse(field.annotation)}{default}"
        (named if "kw_only" in options else head).append(parameter)
        body.append(f"self.{name} = {name}")
    parameters = ", ".join([*head, *(named if len(named) > 1 else [])])
    return ast.parse(f"def __init__({parameters}) -> None: " + "; ".join(body)).body[0]


def _write_out(node: ast.ClassDef, constructor: ast.stmt) -> None:
    for field in _fields(node):
        field.value = None
    node.body.append(constructor)
    node.decorator_list = []


def _use_real_views(tree: ast.Module) -> None:
    defined = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name in VIEWS]
    for each in defined:
        names = f"{VIEWS[each.name]} as {each.name}"
        tree.body[tree.body.index(each)] = ast.parse(f"from registry.cluster import {names}").body[
            0
        ]
