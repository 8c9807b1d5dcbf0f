"""The stages of a request by name, without the dependency of `schema` on pyarrow."""

from typing import Final

from registry.domain.pod import Stage

STAGES: Final = tuple(stage.value for stage in Stage)
"""In the order of a request."""
