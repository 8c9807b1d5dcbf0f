"""The response to a request that the look at its data answers: the likeliest class of each row.

In V1 and V2 JSON, with the probabilities of the classes. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from gateway.selection.class_posterior import class_probabilities

if TYPE_CHECKING:
    from gateway.sneakpeek.frames import Seen
    from registry.domain.application import ApplicationSpec

PROBABILITIES: Final = "probabilities"
"""Name of the second output."""


def answer(application: ApplicationSpec, seen: Seen, alpha: tuple[float, ...]) -> bytes:
    """The body of the response; it bears the application's name."""
    theta = class_probabilities(alpha, np.array(seen.rows, np.float64))
    labels = theta.argmax(axis=1).tolist()
    if not seen.is_v2:
        rows = [
            {application.output: label, PROBABILITIES: shares}
            for label, shares in zip(labels, theta.tolist(), strict=True)
        ]
        return orjson.dumps({"predictions": rows})
    document: dict[str, Any] = {"model_name": application.name.name}
    if seen.request_id is not None:
        document["id"] = seen.request_id
    document["outputs"] = [
        {
            "name": application.output, "datatype": "INT64", "shape": [len(labels)],
            "data": labels,
        },
        {
            "name": PROBABILITIES, "datatype": "FP64", "shape": list(theta.shape),
            "data": theta.ravel().tolist(),
        },
    ]  # fmt: skip
    return orjson.dumps(document)
