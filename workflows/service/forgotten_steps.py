"""Outputs that no step and no code of a run can take any more, so that pods need not keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflows.service.run import Run
    from workflows.service.tensors import KeptAt


def forget_unneeded(run: Run) -> list[KeptAt]:
    """Forget the kept outputs of steps without a handle, and return what pods may free.

    Such a step runs again where it is needed after all: by a run that is resumed, or by a later
    step whose own outputs are lost.
    """
    if not run.forgotten:
        return []
    needed = {number for step in run.steps if not step.is_over for number in step.sources}
    unneeded = run.forgotten - needed - run.fetches - run.iterated.keys()
    freed: list[KeptAt] = []
    for number in sorted(unneeded):
        step = run.steps[number]
        if not step.is_over or step.fetching is not None:
            continue
        run.forgotten.discard(number)
        outputs = (step.outputs or {}).values()
        freed += [each.kept for each in outputs if each.kept is not None]
        step.forget_kept()
    return freed
