"""Applications in the registry as a table or JSON: their variants and the conditions of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.applications.live_window import variants_of
from pilotlight.commands.listing import Listing, show
from pilotlight.commands.target import require_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.commands.target import PlatformTarget
    from pilotlight.output import Output
    from registry.domain.application import ApplicationSpec
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName


async def print_applications(
    target: PlatformTarget,
    output: Output,
    names: Sequence[ModelName],
    namespace: str | None,
    *,
    watch: bool,
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

        await show(output, _APPLICATIONS, read, watch=watch)


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
    columns=("NAME", "READY", "DEADLINE", "POLICY", "VARIANTS", "LEFT OUT"),
    optional=("POLICY", "DEADLINE"),
    row=_row,
    when_empty="no applications; create one with `pilotlight apply -f FILE`",
)
