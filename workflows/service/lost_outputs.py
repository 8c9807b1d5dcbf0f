"""Which outputs that pods should keep are lost: only the steps that made those run again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

import orjson

from workflows.service.http_client import HttpClient, NoResponseError, ResponseTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from registry.pod_secret import PodSecret
    from registry.tls import PartTls
    from workflows.service.run import Run
    from workflows.service.tensors import KeptAt

ANSWER_TIMEOUT_S: Final = 2.0
"""What a pod keeps that does not answer by then is made again."""
MAX_ANSWER_BYTES: Final = 1 << 20


class LostOutputs:
    """A client of all pods. Belongs to the event loop."""

    def __init__(self, secret: PodSecret, tls: PartTls | None = None) -> None:
        self._secret = secret
        self._client = HttpClient(max_response_bytes=MAX_ANSWER_BYTES, tls=tls)

    def close(self) -> None:
        self._client.close()

    async def find(self, run: Run, places: Iterable[KeptAt]) -> frozenset[str]:
        """Identities of the tensors that their pods do not keep any more.

        All of them where every pod says that it keeps its own: the pod that missed one could not
        fetch it, and does not say which.
        """
        by_address: dict[str, set[str]] = {}
        for place in places:
            by_address.setdefault(place.address, set()).add(place.identity)
        kept = await asyncio.gather(
            *(self._kept_at(run, address, sent) for address, sent in by_address.items())
        )
        sent = frozenset().union(*by_address.values())
        return sent.difference(*kept) or sent

    async def _kept_at(self, run: Run, address: str, identities: set[str]) -> set[str]:
        names = "/".join(quote(each, safe="") for each in (run.workflow.namespace, run.identity))
        query = urlencode([("identity", each) for each in sorted(identities)])
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await self._client.request(
                    "GET", address, f"/v2/tensors/{names}?{query}", self._secret.headers
                )
            return set(orjson.loads(response.body)["kept"]) & identities
        except (NoResponseError, ResponseTooLargeError, TimeoutError):
            return set()
        except (ValueError, TypeError, KeyError):  # no pod, or one that lost its memory
            return set()
