"""The whole state of a pool, for a new copy: what the script tells, and hashes read beside it.

Declarations stay out of the script. Lua 5.1 files each string under some 32 of its bytes, and in
these the specifications of many models agree: of 50,000 each is then compared with thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_HASHES: Final = ("models", "previous", "failures", "profiles")


def hash_reads(prefix: str) -> list[tuple[str, str]]:
    """The commands that read what the script leaves out."""
    return [("HGETALL", prefix + name) for name in _HASHES]


def read_snapshot(told: Sequence[Any], hashes: Sequence[Sequence[bytes]]) -> list[Any]:
    """Pods, models, samples, profiles and wanted pods, as `ClusterState.replace` reads them.

    Args:
        told: What the script's `snapshot` returned.
        hashes: The replies to `hash_reads`: names and values in turn.
    """
    pods, samples, wanted = told
    models, previous, failures, profiles = (_texts(each) for each in hashes)
    records = [
        (name, (spec, previous.get(name, False), failures.get(name, False)))
        for name, spec in models.items()
    ]
    return [pods, records, samples, [each for pair in profiles.items() for each in pair], wanted]


def _texts(pairs: Sequence[bytes]) -> dict[str, str]:
    texts = [each.decode() for each in pairs]
    return dict(zip(texts[::2], texts[1::2], strict=True))
