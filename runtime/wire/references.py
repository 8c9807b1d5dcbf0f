"""References to tensors that a pod keeps, in the parameters of V2's inputs and outputs.

As Triton's shared-memory extension does, a tensor's entry then has name, datatype and shape, and
says in its `parameters` where the data is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from registry.shown_value import shown
from runtime.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT_TENSOR: Final = "kept_tensor"
KEPT_AT: Final = "kept_at"
KEPT_BYTES: Final = "kept_bytes"
REFERENCE_FLAG: Final = b'"kept_tensor"'
MAX_IDENTITIES: Final = 128
"""Tensors that one request reads: a path of about 4 KiB."""
_IDENTITY: Final = re.compile(r"[0-9a-f]{32}")
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.\-\[\]:]{1,253}:\d{1,5}")


@dataclass(frozen=True, slots=True)
class TensorReference:
    """Where a tensor is kept."""

    identity: str
    """128 random bits: whoever has it was given it."""
    address: str
    """`host:port` of the pod."""
    size_bytes: int = 0
    """Of its raw form; not sent by those who only use it."""

    def as_parameters(self) -> dict[str, Any]:
        return {
            KEPT_TENSOR: self.identity, KEPT_AT: self.address, KEPT_BYTES: self.size_bytes,
        }  # fmt: skip


def parse_reference(parameters: Mapping[str, Any], path: str) -> TensorReference | None:
    """The reference in an entry's parameters; None without one. Raises InvalidRequest."""
    identity, address = parameters.get(KEPT_TENSOR), parameters.get(KEPT_AT)
    if identity is None:
        return None
    if not isinstance(identity, str) or not _IDENTITY.fullmatch(identity):
        raise InvalidRequest(
            f"{path}: {KEPT_TENSOR} must be 32 hexadecimal digits, was {shown(identity)}"
        )
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise InvalidRequest(f"{path}: {KEPT_AT} must be host:port, was {shown(address)}")
    return TensorReference(identity, address)
