"""What `get` does for each kind of object: a table or JSON, once or as it changes; applications."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pilotlight.commands.target import PlatformTarget, require_known
from pilotlight.output import Output, fit
from registry.domain.application import ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from variants.windows.live_window import variants_of

_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Listing:
    """How objects of one kind are shown; `row` has a cell per column."""

    columns: tuple[str, ...]
    optional: tuple[str, ...]
    """Columns that a narrow terminal goes without, the first to go first."""
    row: Callable[[dict[str, Any]], tuple[str, ...]]
    when_empty: str
    wide: tuple[str, ...] = ()
    """Columns of `-o wide` alone."""
    passing: tuple[str, ...] = ()
    """Columns that change by time alone: `-w` does not print a row for that."""
    width: int | None = None
    """Characters of a line without `-o wide`: the longest values are shortened."""

    def table(
        self, documents: Sequence[dict[str, Any]], *, is_wide: bool
    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The columns and the rows."""
        rows = [self.row(each) for each in documents]
        if is_wide:
            return self.columns, rows
        kept = [at for at, name in enumerate(self.columns) if name not in self.wide]
        columns = [self.columns[at] for at in kept]
        rows = [tuple(row[at] for at in kept) for row in rows]
        if self.width is not None:
            columns, fitted = fit(columns, rows, (), self.width)
            rows = list(map(tuple, fitted))
        return tuple(columns), rows


async def show(
    output: Output, listing: Listing, read: Callable[[], Awaitable[list[dict[str, Any]]]]
) -> None:
    """Print all objects; with `-w` go on with the rows that change, as `kubectl get -w`."""
    documents = await read()
    if output.as_json:
        output.result(documents)
        return
    columns, shown = listing.table(documents, is_wide=output.wide)
    optional = [name for name in listing.optional if name in columns]
    if shown or output.watch:
        output.table(columns, shown, optional=optional)
    else:
        output.note(listing.when_empty)
    while output.watch:
        await asyncio.sleep(_POLL_S)
        _, rows = listing.table(await read(), is_wide=output.wide)
        before = [_without(row, columns, listing.passing) for row in shown]
        changed = [r for r in rows if _without(r, columns, listing.passing) not in before]
        output.table(columns, changed, optional=optional, continues=shown)
        shown = rows


def _without(row: Sequence[str], columns: Sequence[str], left_out: Sequence[str]) -> list[str]:
    return [cell for cell, name in zip(row, columns, strict=True) if name not in left_out]


async def print_applications(
    target: PlatformTarget, output: Output, names: Sequence[ModelName], namespace: str | None
) -> None:
    async with target.registry() as registry:

        async def read() -> list[dict[str, Any]]:
            state = await registry.cluster()
            require_known([str(name) for name in names], {str(name) for name in state.applications})
            return [
                application_document(spec, state)
                for name, spec in sorted(state.applications.items())
                if (not names or name in names)
                and (namespace is None or name.namespace == namespace)
            ]

        await show(output, _APPLICATIONS, read)


def application_document(spec: ApplicationSpec, state: ClusterState) -> dict[str, Any]:
    """One application as JSON. It is ready if a variant can be chosen."""
    variants = variants_of(spec, state)
    return {
        "namespace": spec.name.namespace,
        "name": spec.name.name,
        "ready": bool(variants.usable),
        "classes": list(spec.classes),
        "deadline_s": spec.deadline_s,
        "late": "refuse" if spec.refuses_late else "serve",
        "policy": str(spec.policy),
        "variants": [
            {
                "name": profile.name,
                "accuracy": round(profile.accuracy, 4),
                "recalls": [round(each, 4) for each in profile.recalls],
                "warm_on": [pod.name for pod in state.warm(model.key)],
            }
            for model, profile in variants.usable
        ],
        "left_out": list(variants.problems),
    }


def _row(document: dict[str, Any]) -> tuple[str, ...]:
    variants = [f"{each['name']} ({each['accuracy']:.2f})" for each in document["variants"]]
    return (
        f"{document['namespace']}/{document['name']}",
        "True" if document["ready"] else "False",
        f"{document['deadline_s'] * 1000:g} ms",
        document["policy"],
        ", ".join(variants) or "-",
        "; ".join(document["left_out"]),
    )


_APPLICATIONS = Listing(
    columns=("NAME", "READY", "DEADLINE", "SELECTION", "VARIANTS", "LEFT OUT"),
    optional=("SELECTION", "DEADLINE"),
    row=_row,
    when_empty="no applications; create one with `pilotlight apply -f FILE`",
)
