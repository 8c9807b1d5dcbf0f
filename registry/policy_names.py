"""Names of policies: the built-in ones, and those of plug-ins in other installed distributions.

A distribution offers a policy by an entry point of the kind's group; docs/plugins.md shows one of
each kind. Entry points are read once, and a plug-in is imported when it is first used.
"""

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from registry.domain.application import SelectionPolicy
from registry.domain.model import LoadingPolicyName, ModelSpec, PlacementName, RoutingPolicy
from registry.errors import PluginError

_NAME: Final = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESERVED: Final = frozenset(("none", "off", "own"))
"""Values of flags that stand for no policy, or for each model's own."""


class PolicyNames(Collection[str]):
    """The names of one kind of policy: built-in ones in their order, then plug-ins by name."""

    def __init__(self, group: str, built_in: Iterable[str] = ()) -> None:
        self._group = group
        self._built_in = tuple(map(str, built_in))

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._plugins()

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        yield from self._plugins()

    def __len__(self) -> int:
        return len(self._built_in) + len(self._plugins())

    def __str__(self) -> str:
        return ", ".join(self)

    def load(self, name: str) -> Any:
        """The object of a plug-in. Raises PluginError."""
        return _load(self._group, self._built_in, name)

    def problem(self, name: str) -> str:
        """Why the plug-in of a known name cannot be used here; empty: it can, or is built in."""
        try:
            if name not in self._built_in:
                self.load(name)
        except PluginError as error:
            return str(error)
        return ""

    def _plugins(self) -> Mapping[str, EntryPoint]:
        return _plugins(self._group, self._built_in)


@cache
def _entry_points() -> Any:
    """Of all distributions: to read those of one group takes as long, 15 ms.

    `EntryPoints`, until Python 3.11 `SelectableGroups`; both can `select`.
    """
    return entry_points()


@cache
def _plugins(group: str, built_in: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """By name; those whose names cannot be used are left out, which is said once."""
    found: dict[str, EntryPoint] = {}
    for each in sorted(
        _entry_points().select(group=group), key=lambda each: (each.name, _source(each))
    ):
        known = found.get(each.name)
        if each.name in built_in or each.name in _RESERVED:
            problem = "that name is Pilotlight's own"
        elif not _NAME.fullmatch(each.name):
            problem = "names are 1 to 63 lower-case letters, digits and '-'"
        elif known is not None and known.value != each.value:
            problem = f"{_source(known)} has one of that name, which is used"
        else:
            found[each.name] = each
            continue
        warnings.warn(
            f"plug-in {each.name!r} of {_source(each)} ({group}) is not used: {problem}",
            stacklevel=2,
        )
    return found


@cache
def _load(group: str, built_in: tuple[str, ...], name: str) -> Any:
    found = _plugins(group, built_in).get(name)
    if found is None:
        installed = ", ".join((*built_in, *_plugins(group, built_in)))
        raise PluginError(
            f"{name!r} is not installed here: known are {installed}; install the distribution that "
            f"has it as an entry point of {group}"
        )
    return load_plug_in(found)


def load_plug_in(found: EntryPoint) -> Any:
    """The object of an entry point. Raises PluginError, also where its module calls `sys.exit`."""
    try:
        return found.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"plug-in {found.name!r} of {_source(found)} ({found.group}) cannot be imported from "
            f"{found.value!r}: {type(error).__name__}: {error}"
        ) from error


def _source(found: EntryPoint) -> str:
    return (
        "an unknown distribution"
        if found.dist is None
        else f"{found.dist.name} {found.dist.version}"
    )


# A pool has one loading policy and one planner, since they weigh all models against each other; a
# model that names another one cannot be served by it.


ROUTING: Final = PolicyNames("pilotlight.routing", RoutingPolicy)
LOADING: Final = PolicyNames("pilotlight.loading", LoadingPolicyName)
PLACEMENT: Final = PolicyNames("pilotlight.placement", PlacementName)
SELECTION: Final = PolicyNames("pilotlight.selection", SelectionPolicy)


def loading_problem(spec: ModelSpec, pool: str, loading: str) -> str:
    """Why the model's annotation does not allow the pool's loading policy; empty: it does.

    An empty `loading` is unknown, and allowed.
    """
    wanted = spec.policy.loading
    if wanted is None or not loading or wanted == loading:
        return ""
    return (
        f"{spec.name}: metadata.annotations[pilotlight.io/loading] must be {loading!r}, the "
        f"loading policy of pool {pool}, was {str(wanted)!r}; remove the annotation, or start the "
        f"pool's autoscaler with --loading {wanted}"
    )


def loading_problems(specs: Iterable[ModelSpec], pool: str, loading: str) -> list[str]:
    return [problem for spec in specs if (problem := loading_problem(spec, pool, loading))]


def placement_problem(spec: ModelSpec, pool: str, placement: str) -> str:
    """Why the model's annotation does not allow the pool's planner; empty: it does.

    An empty `placement` is unknown, and allowed; `off` in the annotation is always allowed.
    """
    wanted = spec.policy.placement
    if wanted in (None, PlacementName.OFF) or not placement or wanted == placement:
        return ""
    return (
        f"{spec.name}: metadata.annotations[pilotlight.io/placement] must be 'off' or "
        f"{placement!r}, the planner of pool {pool}, was {str(wanted)!r}; remove the annotation, "
        f"or start the pool's autoscaler with --placement {wanted}"
    )


def placement_problems(specs: Iterable[ModelSpec], pool: str, placement: str) -> list[str]:
    return [problem for spec in specs if (problem := placement_problem(spec, pool, placement))]
