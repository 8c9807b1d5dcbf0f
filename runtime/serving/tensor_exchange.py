"""Inputs and outputs of workflows' steps: references instead of data.

Tier 1: the tensor is kept here, and is used as it is. Tier 2: another pod keeps it, whose memory is
mapped if it runs on this node; else its raw bytes are fetched. Everything else, such as texts and
small outputs, is in the body.
"""

from __future__ import annotations

import array
import asyncio
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

import numpy as np
import orjson

from common.http_client import HttpClient
from common.http_connection import HttpError
from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import (
    EncodedBody,
    V2Request,
    encode_response,
    find_references,
    select_outputs,
)
from common.inference_protocol.encodings import from_raw, raw_bytes, raw_size
from common.inference_protocol.tensors import (
    BF16,
    BYTES,
    MAX_IDENTITIES,
    REFERENCE_FLAG,
    Tensor,
    TensorReference,
    TensorSpec,
)
from common.pod_secret import PodSecret
from common.tls import PartTls
from registry.domain.estimates import (
    KEPT_OVER_BYTES,
    TRANSFERS,
    TransferTier,
    size_class,
    transfer_measure,
)
from runtime.errors import InputLost
from runtime.inference_request import RequestHead
from runtime.measurements import Measurements
from runtime.metrics import KEPT_TENSOR_READS
from runtime.serving.repository import ModelCatalog
from runtime.serving.tensor_store import MappedBlock, TensorStore, map_block
from runtime.threads import in_thread
from runtime.tiers.host_folder import HostSockets, check_user

logger = logging.getLogger(__name__)

MAX_TENSORS: Final = 64
"""Of one exchange; the kernel passes 253 descriptors at most."""
MAX_MESSAGE_BYTES: Final = 16 * 1024
EXCHANGE_TIMEOUT_S: Final = 2.0
TRANSFER_STALL_S: Final = 30.0
"""Without a byte of the response."""
MAX_CONNECTIONS: Final = 256
"""Those beyond are closed at once."""
RETRY_S: Final = 1.0
"""After an error of the listener, such as a lack of descriptors."""


class BlockServer:
    """Hands shared blocks to other pods of the node: their descriptors, over a Unix socket.

    One exchange a connection: a message that names tensors of one run, and a reply that says which
    of them are blocks, with their descriptors. Blocks are not written again until the client, which
    must have the pods' secret, closes the connection. On any failure the client gets the bytes over
    HTTP.
    """

    def __init__(
        self,
        sockets: HostSockets,
        address: str,
        store: TensorStore,
        secret: PodSecret,
        threads: Executor,
    ) -> None:
        self._sockets = sockets
        self._address = address
        self._store = store
        self._secret = secret
        self._threads = threads
        self._connections = 0

    async def run(self) -> None:
        """Serve until cancelled; without a socket other pods get the bytes."""
        try:
            listener = await in_thread(self._threads, self._sockets.listen, self._address)
        except OSError as error:
            logger.warning("no shared memory with other pods", extra={"error": error})
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    connection = await _accept(listener)
                    if self._connections >= MAX_CONNECTIONS:
                        connection.close()
                        continue
                    self._connections += 1
                    tasks.create_task(self._serve(connection))
        finally:
            listener.close()
            self._sockets.remove(self._address)

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            with connection:
                check_user(connection)
                async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                    message = await loop.sock_recv(connection, MAX_MESSAGE_BYTES)
                run, identities = self._parse(message)
                blocks = [self._store.find_block(*run, each) for each in identities]
                reply = orjson.dumps([block is not None for block in blocks])
                descriptors = [block.descriptor for block in blocks if block is not None]
                socket.send_fds(connection, [reply], descriptors)
                if descriptors:
                    await loop.sock_recv(connection, 1)  # until the client closes it
        except (OSError, TimeoutError, ValueError, TypeError, KeyError) as error:
            logger.info("blocks not handed over", extra={"error": repr(error)})
        finally:
            self._connections -= 1

    def _parse(self, message: bytes) -> tuple[tuple[str, str], list[str]]:
        """Namespace and run, and the identities. Raises what a wrong message raises."""
        document = orjson.loads(message)
        fields = (document["secret"], document["namespace"], document["run"], *document["tensors"])
        if not all(isinstance(each, str) for each in fields):
            raise ValueError("a message must hold texts alone")
        secret, namespace, run, *identities = fields
        if not self._secret.accepts(secret.encode()):
            raise PermissionError("the message does not have the pods' secret")
        return (namespace, run), identities[:MAX_TENSORS]


async def _accept(listener: socket.socket) -> socket.socket:
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
        except OSError as error:
            logger.warning("connection of another pod not accepted", extra={"error": error})
            await asyncio.sleep(RETRY_S)
        else:
            connection.setblocking(False)
            return connection


class BlockClient:
    """Maps blocks of other pods of the node."""

    def __init__(self, sockets: HostSockets, secret: PodSecret, threads: Executor) -> None:
        self._sockets = sockets
        self._secret = secret
        self._threads = threads

    async def fetch(
        self, address: str, namespace: str, run: str, identities: Sequence[str]
    ) -> dict[str, MappedBlock]:
        """Those of the tensors that are blocks on this node, by identity."""
        if not self._sockets.may_have(address):
            return {}
        return await in_thread(self._threads, self._fetch, address, namespace, run, identities)

    def _fetch(
        self, address: str, namespace: str, run: str, identities: Sequence[str]
    ) -> dict[str, MappedBlock]:
        found: dict[str, MappedBlock] = {}
        try:
            for first in range(0, len(identities), MAX_TENSORS):
                some = identities[first : first + MAX_TENSORS]
                message = orjson.dumps(
                    {
                        "secret": self._secret.header_value,
                        "namespace": namespace,
                        "run": run,
                        "tensors": some,
                    }
                )
                lease = _Lease(self._sockets.connect(address, EXCHANGE_TIMEOUT_S))
                lease.connection.sendall(message)
                blocks = _receive(lease.connection, some)
                for block in blocks.values():
                    block.lease = lease
                found |= blocks
        except (OSError, ValueError) as error:
            logger.info("no shared memory", extra={"pod": address, "error": repr(error)})
        return found


class _Lease:
    """Closes a connection with the last of the blocks that came over it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        weakref.finalize(self, connection.close)


def _receive(connection: socket.socket, identities: Sequence[str]) -> dict[str, MappedBlock]:
    """The blocks of a reply, mapped. Raises OSError, ValueError.

    Python 3.11's `socket.recv_fds` ignores its flags, such as close-on-exec.
    """
    room = socket.CMSG_SPACE(MAX_TENSORS * array.array("i").itemsize)
    reply, ancillary, _, _ = connection.recvmsg(MAX_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            usable = len(content) - len(content) % descriptors.itemsize
            descriptors.frombytes(content[:usable])
    try:
        if not reply:
            raise ConnectionResetError("the pod closed the connection")
        is_block = orjson.loads(reply)
        names = [name for name, given in zip(identities, is_block, strict=True) if given]
        pairs = zip(names, descriptors, strict=True)
        return {name: map_block(descriptor) for name, descriptor in pairs}
    finally:
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class StepRun:
    """The run of a step."""

    namespace: str
    identity: str


class TensorExchange:
    """Gets tensors that other pods keep: their memory on this node, their bytes from elsewhere.

    What a pod of this node cannot hand over, such as one that runs an older version, is fetched as
    bytes, too. Belongs to the event loop.
    """

    def __init__(
        self,
        secret: PodSecret,
        tls: PartTls,
        blocks: BlockClient | None = None,
        measurements: Measurements | None = None,
    ) -> None:
        """`blocks`: None: this pod shares no memory. `measurements` gets the times of transfers."""
        self._secret = secret
        self._client = HttpClient(tls=tls, stall_s=TRANSFER_STALL_S)
        self._blocks = blocks
        self._measurements = measurements

    def close(self) -> None:
        self._client.close()

    async def get(
        self, address: str, run: StepRun, wanted: Mapping[str, TensorSpec]
    ) -> dict[str, Tensor]:
        """Tensors of one pod, by identity. Raises InputLost."""
        found = await self._map(address, run, wanted)
        missing = [(identity, spec) for identity, spec in wanted.items() if identity not in found]
        for first in range(0, len(missing), MAX_IDENTITIES):
            found |= await self._fetch(address, run, missing[first : first + MAX_IDENTITIES])
        return found

    async def _map(
        self, address: str, run: StepRun, wanted: Mapping[str, TensorSpec]
    ) -> dict[str, Tensor]:
        """Those that are in memory that this pod can map."""
        if self._blocks is None:
            return {}
        started_s = time.monotonic()
        blocks = await self._blocks.fetch(address, run.namespace, run.identity, list(wanted))
        tensors = {
            identity: _tensor(address, wanted[identity], memoryview(block), is_stored=True)
            for identity, block in blocks.items()
        }
        self._count(TransferTier.SHARED_MEMORY, tensors, started_s)
        return tensors

    async def _fetch(
        self, address: str, run: StepRun, wanted: Sequence[tuple[str, TensorSpec]]
    ) -> dict[str, Tensor]:
        names = ",".join(identity for identity, _ in wanted)
        started_s = time.monotonic()
        parts = await self.fetch_bytes(
            address,
            f"/v2/tensors/{run.namespace}/{run.identity}/{names}",
            [raw_size(spec) for _, spec in wanted],
        )
        tensors = {
            identity: _tensor(address, spec, part)
            for (identity, spec), part in zip(wanted, parts, strict=True)
        }
        self._count(TransferTier.RAW_BYTES, tensors, started_s)
        return tensors

    async def fetch_bytes(self, address: str, path: str, sizes: Sequence[int]) -> list[memoryview]:
        """Raw bytes of the tensors that a pod keeps at a path, of exactly these sizes in bytes.

        They are received in their own memory, in one response. Raises InputLost.
        """
        try:
            parts = [np.empty(size, np.uint8).data for size in sizes]
            status = await self._client.receive(address, path, self._secret.headers, parts)
        except (HttpError, MemoryError) as error:
            raise InputLost(
                f"pod {address}, which keeps an input, cannot send it: {error!r}"
            ) from error
        if status != HTTPStatus.OK:
            raise InputLost(f"pod {address} does not keep the tensor (any more): status {status}")
        return parts

    def _count(self, tier: TransferTier, tensors: Mapping[str, Tensor], started_s: float) -> None:
        """Count one exchange, and its time by the size of all that came with it."""
        KEPT_TENSOR_READS.labels(tier=tier).inc(len(tensors))
        if tensors and self._measurements is not None:
            size_bytes = sum(tensor.data.nbytes for tensor in tensors.values())
            seconds = time.monotonic() - started_s
            self._measurements.add(
                TRANSFERS, transfer_measure(tier, size_class(size_bytes)), seconds
            )


@dataclass(frozen=True, slots=True)
class StepTensors:
    address: str
    """`host:port` of this pod."""
    store: TensorStore
    exchange: TensorExchange
    catalog: ModelCatalog

    async def find_inputs(self, head: RequestHead, body: bytes) -> Mapping[str, Tensor]:
        """The kept tensors that a V2 body refers to. Raises InputLost, InvalidRequest."""
        if head.run is None or REFERENCE_FLAG not in body:
            return {}
        by_address: dict[str, dict[str, TensorSpec]] = {}
        for reference, spec in find_references(body, head.v2_header_length):
            if spec.datatype == BYTES:
                raise InvalidRequest(f"{spec.path}: only numbers are kept, not {BYTES}")
            by_address.setdefault(reference.address, {})[reference.identity] = spec
        run = StepRun(head.model.namespace, head.run)
        found = await asyncio.gather(
            *(self._find_at(address, run, wanted) for address, wanted in by_address.items())
        )
        return {identity: tensor for tensors in found for identity, tensor in tensors.items()}

    async def _find_at(
        self, address: str, run: StepRun, wanted: Mapping[str, TensorSpec]
    ) -> dict[str, Tensor]:
        """Tensors that one pod keeps, by identity."""
        if address == self.address:
            return {
                identity: self._find_here(run, identity, spec) for identity, spec in wanted.items()
            }
        path = next(iter(wanted.values())).path
        if not await self.catalog.is_pod(address):
            raise InputLost(f"{path}: pod {address} is not registered (any more)")
        return await self.exchange.get(address, run, wanted)

    def _find_here(self, run: StepRun, identity: str, spec: TensorSpec) -> Tensor:
        tensor = self.store.find(run.namespace, run.identity, identity)
        if tensor is None:
            raise InputLost(f"{spec.path}: this pod does not keep the tensor (any more)")
        KEPT_TENSOR_READS.labels(tier=TransferTier.SAME_POD).inc()
        return tensor

    def encode_outputs(
        self,
        head: RequestHead,
        request: V2Request,
        on_size: Callable[[int], object],
        outputs: Sequence[Tensor],
    ) -> EncodedBody:
        """The response to a step, whose large outputs are kept as long as there is room.

        `on_size` gets the size of the outputs in bytes, perhaps in another thread.
        """
        kept = {}
        size_bytes = 0
        for tensor, _ in select_outputs(outputs, request):
            size_bytes += _size_bytes(tensor)
            reference = self._keep(head, tensor)
            if reference is not None:
                kept[tensor.name] = reference
        on_size(size_bytes)
        return encode_response(
            outputs, model_name=head.response_model_name, request=request, kept=kept
        )

    def _keep(self, head: RequestHead, tensor: Tensor) -> TensorReference | None:
        if head.run is None or tensor.datatype == BYTES or tensor.host_bytes <= KEPT_OVER_BYTES:
            return None
        identity = self.store.keep(
            head.model.namespace, head.run, tensor, expires_s=head.deadline_s
        )
        if identity is None:
            return None
        return TensorReference(identity, self.address, raw_bytes(tensor))


def _size_bytes(tensor: Tensor) -> int:
    if tensor.datatype == BYTES:
        return sum(map(len, tensor.data.ravel()))
    return tensor.host_bytes


def _tensor(
    address: str, spec: TensorSpec, content: memoryview, *, is_stored: bool = False
) -> Tensor:
    """`is_stored`: in the form of numpy's array, which for BF16 is float32. Raises InputLost."""
    try:
        if is_stored and spec.datatype == BF16:
            return Tensor(spec.name, BF16, from_raw(content, replace(spec, datatype="FP32")).data)
        return from_raw(content, spec)
    except InvalidRequest as error:
        raise InputLost(f"pod {address} keeps another tensor: {error}") from error
