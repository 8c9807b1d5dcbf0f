"""The stages of a request, as `server-timing` tells them; `schema` needs pyarrow, this does not."""

from typing import Final

STAGES: Final = ("queue", "load", "preprocess", "infer", "postprocess", "network")
"""In the order a request meets them."""
