"""Members of enums and functions of the standard library as constants of a module.

mypyc reads a constant from memory, but at each use it looks up an imported name in the module's
dictionary, and a member in its class.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

ENUMS: Final = frozenset({
    "ClaimScope", "LoadMode", "PodPhase", "Reason", "Refusal", "RoutingPolicy", "Tier",
})  # fmt: skip
"""Their members become constants."""
_FUNCTIONS: Final = frozenset({"bisect", "heapq", "math"})
"""Modules whose functions become constants."""


def look_up_once(tree: ast.Module) -> None:
    """Add constants to the module for the members and functions that its functions use."""
    imports = [each for each in tree.body if isinstance(each, ast.ImportFrom)]
    imported = {alias.asname or alias.name: each.module for each in imports for alias in each.names}
    lookup = _LookedUp(
        ENUMS & imported.keys(), {name for name, module in imported.items() if module in _FUNCTIONS}
    )
    lookup.visit(tree)
    lines = ["from typing import Final as _Final"] if lookup.found else []
    lines += [f"{_constant_of(each)}: _Final = {each}" for each in sorted(lookup.found)]
    last = max((tree.body.index(each) for each in imports), default=0)
    tree.body[last + 1 : last + 1] = ast.parse("\n".join(lines)).body


class _LookedUp(ast.NodeTransformer):
    """Replaces members and functions by constants of the module."""

    def __init__(self, enums: Collection[str], names: Collection[str]) -> None:
        self.found: set[str] = set()
        """Expressions, such as `Tier.DEVICE`."""
        self._enums = enums
        self._names = names
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Visit the body only: defaults and decorators stay."""
        self._depth += 1
        node.body = [self.visit(each) for each in node.body]
        self._depth -= 1
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        """Visit the body only: a name as pattern would match everything."""
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        is_member = isinstance(node.value, ast.Name) and node.value.id in self._enums
        return self._constant(node) if is_member and node.attr.isupper() else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_read = isinstance(node.ctx, ast.Load)
        return self._constant(node) if is_read and node.id in self._names else node

    def _constant(self, node: ast.expr) -> ast.AST:
        if not self._depth:
            return node
        expression = ast.unparse(node)
        self.found.add(expression)
        return ast.copy_location(ast.Name(_constant_of(expression), ast.Load()), node)


def _constant_of(expression: str) -> str:
    return "_of_" + expression.replace(".", "_")
