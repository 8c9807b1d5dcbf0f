"""Utility, accuracy and misses of requests with labelled examples, overall and by application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from load.report.run import Answers, GroupedNames, floats

if TYPE_CHECKING:
    import pyarrow as pa

    from load.report.run import Bools, Run


def answer_columns(table: pa.Table) -> Answers:
    """From columns of `ANSWER_SCHEMA`."""
    names = ("label", "prediction", "expected_utility", "utility")
    return Answers(
        GroupedNames.of(table.column("variant").cast(table.schema.field("variant").type)),
        *(floats(table.column(each).cast("float64")) for each in names),
    )


def summarise_answers(run: Run) -> dict[str, Any] | None:
    """As JSON; None for a run without examples."""
    answers = run.answers
    if answers is None or not answers.is_judged.any():
        return None
    models = run.model
    return {
        **_summary(run, answers, answers.is_judged),
        "by_application": {
            name: _summary(run, answers, answers.is_judged & (models.codes == code))
            for code, name in enumerate(models.names)
            if (answers.is_judged & (models.codes == code)).any()
        },
    }


def _summary(run: Run, answers: Answers, chosen: Bools) -> dict[str, Any]:
    served = chosen & ~np.isnan(answers.prediction)
    count = int(chosen.sum())
    expected = answers.expected_utility[served & ~np.isnan(answers.expected_utility)]
    codes = answers.variant.codes[chosen]
    return {
        "requests": count,
        "utility": float(answers.utility[chosen].sum() / count),
        "expected_utility": float(expected.mean()) if len(expected) else None,
        "accuracy": float(answers.is_right[served].mean()) if served.any() else None,
        "missed": int(run.is_missed[chosen].sum()),
        "variants": {
            name: int((codes == code).sum())
            for code, name in enumerate(answers.variant.names)
            if (codes == code).any()
        },
    }
