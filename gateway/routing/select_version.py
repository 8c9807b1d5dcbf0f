"""Chooses which version of a model serves a request: the model itself or one of its canaries.

A hash of the request id selects the version. The same id selects the same version at every
gateway, and the ids of a canary stay with it when its percentage grows. Pure.
"""

import hashlib
from collections.abc import Sequence

from registry.domain.canaries import TOTAL_PERCENT, Canary
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelRecord
from registry.inference_service.predictors import unmet_needs


def select_version(
    requested: ModelName, canaries: Sequence[Canary], request_id: str, state: ClusterState
) -> ModelName:
    """The model that serves the request; each canary gets its percentage of all request ids.

    The requested model serves it if the selected canary is unknown or cannot be loaded.
    """
    selected = split_by_id(requested, canaries, request_id)
    record = state.models.get(selected)
    return selected if record is not None and can_be_served(record, state) else requested


def split_by_id(requested: ModelName, canaries: Sequence[Canary], request_id: str) -> ModelName:
    """The version that a request id belongs to."""
    digest = hashlib.blake2b(f"{requested}\0{request_id}".encode(), digest_size=8).digest()
    point = TOTAL_PERCENT * (int.from_bytes(digest, "big") / (1 << 64))
    for canary in canaries:
        if point < canary.percent:
            return canary.model
        point -= canary.percent
    return requested


def can_be_served(record: ModelRecord, state: ClusterState) -> bool:
    """True if a model is warm somewhere, or pods can serve it and its last load did not fail."""
    if unmet_needs(record.serving, state):
        return False
    if any(residency.is_warm for residency in state.holders(record.serving.key).values()):
        return True
    return record.failure is None or record.failure.key != record.serving.key
