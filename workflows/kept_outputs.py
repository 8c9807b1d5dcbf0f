"""Outputs that pods keep: their data where a run's code wants it, which are lost, and their end.

Only the steps that made lost ones run again.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote, urlencode

from common.http_client import HttpClient
from common.http_connection import HttpError
from common.inference_protocol.tensors import TensorReference
from common.pod_secret import PodSecret
from common.tls import PartTls
from workflows.errors import InputsLost
from workflows.run import Run, RunStep
from workflows.values import StoredTensor

logger = logging.getLogger(__name__)

MAX_FETCH_BYTES: Final = 4 * 1024**2
"""Outputs that a run's code may fetch at once: it is given them in one message, through a pipe."""
ANSWER_TIMEOUT_S: Final = 2.0
"""What a pod keeps that does not answer by then is made again."""
FETCH_TIMEOUT_S: Final = 10.0
DROP_TIMEOUT_S: Final = 10.0
MAX_FREED: Final = 128
"""Outputs that one request names, as many as a pod takes."""


class KeptOutputs:
    """A client of all pods. Belongs to the event loop."""

    def __init__(self, secret: PodSecret, tls: PartTls | None = None) -> None:
        self._secret = secret
        self._client = HttpClient(max_body_bytes=MAX_FETCH_BYTES, tls=tls)

    def close(self) -> None:
        self._client.close()

    async def fetch(self, run: Run, step: RunStep) -> dict[str, StoredTensor]:
        """All outputs of a step with their data; pods keep theirs. Raises InputsLost."""
        outputs = dict(step.outputs or {})
        for name, tensor in outputs.items():
            if tensor.kept is not None and tensor.is_elsewhere:
                raw = await self._fetch_tensor(run, name, tensor.kept)
                outputs[name] = replace(tensor, raw=raw)
        return outputs

    async def _fetch_tensor(self, run: Run, name: str, kept: TensorReference) -> bytes:
        lost = frozenset((kept.identity,))
        path = f"{_path(run)}/{quote(kept.identity, safe='')}"
        try:
            response = await self._client.request(
                "GET", kept.address, path, self._secret.headers, timeout_s=FETCH_TIMEOUT_S
            )
        except HttpError as error:
            raise InputsLost(f"the pod that keeps {name!r} is gone: {error}", lost) from error
        if response.status != 200 or len(response.body) != kept.size_bytes:
            raise InputsLost(f"the pod does not keep {name!r} any more", lost)
        return response.body

    async def drop(self, run: Run, addresses: Collection[str]) -> None:
        """Free what pods keep for a run that has ended; what fails ends with its deadline."""
        await asyncio.gather(*(self._delete(address, _path(run)) for address in addresses))

    async def free(self, run: Run, kept: Sequence[TensorReference]) -> None:
        """Free single outputs; what fails ends with the run."""
        by_address: dict[str, list[str]] = {}
        for each in kept:
            by_address.setdefault(each.address, []).append(quote(each.identity, safe=""))
        for address, identities in by_address.items():
            for first in range(0, len(identities), MAX_FREED):
                some = ",".join(identities[first : first + MAX_FREED])
                await self._delete(address, f"{_path(run)}/{some}")

    async def _delete(self, address: str, path: str) -> None:
        try:
            await self._client.request(
                "DELETE", address, path, self._secret.headers, timeout_s=DROP_TIMEOUT_S
            )
        except HttpError as error:
            logger.info("kept outputs not freed", extra={"pod": address, "error": str(error)})

    async def find_lost(self, run: Run, places: Iterable[TensorReference]) -> frozenset[str]:
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
        query = urlencode([("identity", each) for each in sorted(identities)])
        try:
            response = await self._client.request(
                "GET",
                address,
                f"{_path(run)}?{query}",
                self._secret.headers,
                timeout_s=ANSWER_TIMEOUT_S,
            )
            return set(response.json()["kept"]) & identities
        except (HttpError, ValueError, TypeError, KeyError):  # no pod, or one without memory of it
            return set()


def _path(run: Run) -> str:
    names = (run.workflow.namespace, run.identity)
    return "/v2/tensors/" + "/".join(quote(name, safe="") for name in names)
