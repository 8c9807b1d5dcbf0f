"""`get` and `describe` of every kind: a table, JSON or YAML, once or as it changes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from inspect import Parameter
from typing import Annotated, Any, Final

import typer
import yaml

from gateway.management import Document
from pilotlight.commands import flags
from pilotlight.commands.kinds import KINDS, Kind, Listing, parse_model_names
from pilotlight.commands.target import PlatformTarget, require_known
from pilotlight.output import Output

_POLL_S: Final = 1.0

_KINDS: Final = " or ".join(", ".join(each.plural for each in KINDS).rsplit(", ", 1))

app = typer.Typer()


def _add_group(
    name: str, about: str, shown: str, make: Callable[[Kind], Callable[..., None]]
) -> None:
    """A verb of the group for each kind, by its `name` or `plural`, as shown, and other words."""
    group = typer.Typer(name=name, no_args_is_help=True, help=about)
    for kind in KINDS:
        verb = make(kind)
        verb.words = kind.words  # type: ignore[attr-defined]  # which `cli.Group` reads
        group.command(getattr(kind, shown))(verb)
    app.add_typer(group)


def _listing(kind: Kind) -> Callable[..., None]:
    async def get(target: PlatformTarget, output: Output, **given: Any) -> None:
        namespace = given.get("namespace")
        wanted = _full_names(kind, given["names"] or [], namespace)
        own = "" if namespace is None else f"{namespace}/"
        async with _registry(kind, target) as registry:

            async def read() -> tuple[list[Document], str]:
                view = await kind.view(target, registry, namespace or "default")
                require_known(wanted, view.documents)
                documents = [
                    make()
                    for name, make in view.documents.items()
                    if (not wanted or name in wanted) and name.startswith(own)
                ]
                return documents, view.when_empty

            await _show(output, kind.listing, read)

    get.__doc__ = kind.about[0]
    argument = typer.Argument(
        metavar="NAME", help=f"Show only these {kind.plural}.", autocompletion=kind.complete
    )
    names = flags.argument("names", Annotated[list[str] | None, argument], None)
    return flags.verb_of(get, [names, *_namespace(kind)], *kind.flags, lists=True)


def _describing(kind: Kind) -> Callable[..., None]:
    async def describe(target: PlatformTarget, output: Output, **given: Any) -> None:
        [wanted] = _full_names(kind, [given["name"]], given.get("namespace"))
        async with _registry(kind, target) as registry:
            view = await kind.view(target, registry, wanted.partition("/")[0])
        require_known([wanted], view.documents)
        document = view.details(wanted, view.documents[wanted]())
        if output.as_json:
            output.result(document)
        else:
            output.line(_text(view.readable(document)))

    describe.__doc__ = kind.about[1]
    words = "NAME or NAMESPACE/NAME" if kind.is_namespaced else f"Name of the {kind.name}."
    argument = typer.Argument(metavar="NAME", help=words, autocompletion=kind.complete)
    name = flags.argument("name", Annotated[str, argument])
    return flags.verb_of(describe, [name, *_namespace(kind)], *kind.flags)


def _namespace(kind: Kind) -> list[Parameter]:
    return [flags.argument("namespace", flags.Namespace, None)] if kind.is_namespaced else []


def _full_names(kind: Kind, names: Sequence[str], namespace: str | None) -> list[str]:
    if not kind.is_namespaced:
        return list(names)
    return [str(name) for name in parse_model_names(names, namespace)]


@asynccontextmanager
async def _registry(kind: Kind, target: PlatformTarget) -> AsyncIterator[Any]:
    """None where the kind is read from the gateway."""
    if kind.flags != flags.REGISTRY:
        yield None
        return
    async with target.registry() as registry:
        yield registry


async def _show(
    output: Output, listing: Listing, read: Callable[[], Awaitable[tuple[list[Document], str]]]
) -> None:
    """Print all objects; with `-w` go on with the rows that change, as `kubectl get -w`."""
    documents, when_empty = await read()
    if output.as_json:
        output.result(documents)
        return
    columns, shown = listing.table(documents, is_wide=output.wide)
    optional = [name for name in listing.optional if name in columns]
    if shown or output.watch:
        output.table(columns, shown, optional=optional)
    else:
        output.note(when_empty)
    while output.watch:
        await asyncio.sleep(_POLL_S)
        _, rows = listing.table((await read())[0], is_wide=output.wide)
        before = [_without(row, columns, listing.passing) for row in shown]
        changed = [r for r in rows if _without(r, columns, listing.passing) not in before]
        output.table(columns, changed, optional=optional, continues=shown)
        shown = rows


def _without(row: Sequence[str], columns: Sequence[str], left_out: Sequence[str]) -> list[str]:
    return [cell for cell, name in zip(row, columns, strict=True) if name not in left_out]


def _text(document: Document) -> str:
    # through JSON, since enumerations of strings are strings there
    plain = json.loads(
        json.dumps({key.replace("_", " "): value for key, value in document.items()})
    )
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100).rstrip()


_add_group("get", f"Show {_KINDS}.", "plural", _listing)
_add_group("describe", "Show one object in detail.", "name", _describing)
