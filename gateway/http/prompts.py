"""The prompt of a text generation's body, as the blocks by which pods with its prefix are found.

Only pods have tokens: a block is as much text as 16 tokens make on average, as in llm-d. Pure.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import orjson
from pydantic_core import from_json

from gateway.http.targets import ModelTarget, Verb
from registry.domain.model import ModelSpec, Task
from registry.domain.prompt_prefixes import BLOCK_TOKENS, Prompt, max_new_tokens

_TOKEN_BYTES: Final = 4
_BLOCK_BYTES: Final = BLOCK_TOKENS * _TOKEN_BYTES
_READ_BYTES: Final = 64 << 10
"""Of a body: prompts that begin with as much in common have most of their time in common."""
_FIELDS: Final = (
    "cache_salt", "tools", "instructions", "messages", "prompt", "input", "instances", "inputs",
)  # fmt: skip
"""What an engine computes of OpenAI's and KServe's bodies, in the order of its prompts."""
_SALT: Final = np.random.default_rng(0).integers(1 << 32, size=_BLOCK_BYTES // 4, dtype=np.uint32)
_FACTORS: Final = np.cumprod(np.full(_READ_BYTES // _BLOCK_BYTES, 0x9E3779B97F4A7C15, np.uint64))
_ENDPOINTS: Final = frozenset({"completions", "chat/completions", "responses"})


def has_prompt(target: ModelTarget, spec: ModelSpec) -> bool:
    if target.openai_endpoint is not None:
        return target.openai_endpoint in _ENDPOINTS and spec.task in (None, Task.TEXT_GENERATION)
    return target.verb in (Verb.PREDICT, Verb.INFER) and spec.task is Task.TEXT_GENERATION


def read_prompt(chunks: Iterable[bytes], length: int) -> Prompt | None:
    """`length`: of the whole body; None: there is no prompt in its beginning."""
    beginning = b""
    for chunk in chunks:
        beginning += chunk[: _READ_BYTES - len(beginning)]
    try:
        body = from_json(beginning.decode(errors="ignore"), allow_partial="trailing-strings")
        found = [body[name] for name in _FIELDS if name in body]
        text = orjson.dumps(found)
    except (ValueError, TypeError):  # it is no JSON object, or has numbers that are none
        return None
    tokens = (len(text) + max(0, length - _READ_BYTES)) // _TOKEN_BYTES
    return Prompt(_blocks(text), tokens, max_new_tokens(body)) if found else None


def _blocks(text: bytes) -> list[int]:
    """Hashes of the text up to the end of each whole block, 60 times as fast as one by one.

    Of a block NH (Black et al. 1999, "UMAC: fast and secure message authentication"), of blocks
    their sum, each times a factor of its place.
    """
    count = min(len(text), _READ_BYTES) // _BLOCK_BYTES
    words = np.frombuffer(text, np.uint32, count * len(_SALT)).reshape(count, len(_SALT))
    salted = (words + _SALT).astype(np.uint64)
    hashes = (salted[:, ::2] * salted[:, 1::2]).sum(axis=1)
    found: list[int] = np.cumsum(hashes * _FACTORS[:count]).tolist()
    return found
