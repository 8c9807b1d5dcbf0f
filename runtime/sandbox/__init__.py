"""Code of models' files (templates, tokenizers, pickles), in processes that can be killed."""

from typing import Final

HEADER_LENGTH: Final = "header_length"
"""Between a pod and its process of pickles, of which a pod imports no more: the JSON's length."""
