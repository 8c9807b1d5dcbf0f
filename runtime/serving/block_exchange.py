"""Shared blocks between pods of one node: over a Unix socket go their descriptors, not their bytes.

One exchange a connection: a message that names tensors of one run, and a reply that says which of
them are blocks, with their descriptors. The client closes the connection when it uses none of them
any more; until then they are not written again. Whatever fails, it gets the bytes over HTTP.
"""

from __future__ import annotations

import array
import asyncio
import logging
import os
import socket
import weakref
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final

import orjson

from common.pod_secret import PodSecret
from runtime.serving.shared_block import MappedBlock, map_block
from runtime.serving.tensor_store import TensorStore
from runtime.threads import in_thread
from runtime.tiers.host_folder import HostSockets, check_user

logger = logging.getLogger(__name__)

MAX_TENSORS: Final = 64
"""Of one exchange; the kernel passes 253 descriptors at most."""
MAX_MESSAGE_BYTES: Final = 16 * 1024
EXCHANGE_TIMEOUT_S: Final = 2.0
MAX_CONNECTIONS: Final = 256
"""Those beyond are closed at once."""
RETRY_S: Final = 1.0
"""After an error of the listener, such as a lack of descriptors."""


class BlockServer:
    """Hands this pod's blocks to other pods of its node that have the pods' secret."""

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
                if self._store.is_on_device(identities):
                    await in_thread(self._threads, self._copy_to_host, run, identities)
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

    def _copy_to_host(self, run: tuple[str, str], identities: Sequence[str]) -> None:
        for each in identities:
            self._store.find_on_host(*run, each)

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
