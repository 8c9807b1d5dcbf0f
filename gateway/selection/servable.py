"""Whether requests to a model may succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelRecord


def can_be_served(record: ModelRecord, state: ClusterState) -> bool:
    """Whether a model is warm somewhere, or its last load did not fail."""
    if any(residency.is_warm for residency in state.holders(record.serving.key).values()):
        return True
    return record.failure is None or record.failure.key != record.serving.key
