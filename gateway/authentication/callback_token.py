"""Tokens with which a model's transformer and explainer call the model back.

They get one in place of the caller's credential, which may open more than this model: a caller may
be an operator, or have a token of several namespaces. KServe's components pass `authorization` on.
A token is valid for one model until a time, and signed with the pods' secret, which all gateways
of a platform share. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from registry.domain.model import ModelName
    from registry.pod_secret import PodSecret

_PREFIX: Final = b"pilotlight-callback"
LEEWAY_S: Final = 30.0
"""Beyond the request's deadline: clocks of gateways may differ."""


def make_token(secret: PodSecret, model: ModelName, until_s: float) -> bytes:
    """A token for requests to the model until `until_s` (Unix time); empty without a secret."""
    claim = _claim(model, math.ceil(until_s + LEEWAY_S))
    signatures = secret.sign(claim)
    return b"%b.%b" % (claim, b"~".join(signatures)) if signatures else b""


def is_callback(secret: PodSecret, token: bytes | None, model: ModelName, now_s: float) -> bool:
    """Whether a credential is a token for the model that is valid at `now_s` (Unix time)."""
    if token is None or not token.startswith(_PREFIX):
        return False
    claim, _, signatures = token.rpartition(b".")
    expiry = claim.rpartition(b".")[2]
    if not expiry.isdigit() or len(expiry) > 12 or claim != _claim(model, int(expiry)):
        return False
    return int(expiry) >= now_s and secret.has_signed(claim, signatures.split(b"~"))


def _claim(model: ModelName, expiry_s: int) -> bytes:
    """Names of declared models and namespaces have no dots."""
    return b"%b.%b.%b.%d" % (_PREFIX, model.namespace.encode(), model.name.encode(), expiry_s)
