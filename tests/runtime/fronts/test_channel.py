"""The channel between front and device process: tensors, descriptors, order, the other's end."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from runtime.fronts.channel import MAX_INLINE_BYTES, Channel, socket_pair
from runtime.fronts.messages import Kind, Message
from runtime.wire.tensors import BF16, Tensor, bytes_tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio


class Ends:
    """Both ends of a channel in this process."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.sender_closed = asyncio.Event()
        self.sender = Channel(lambda _: None, self.sender_closed.set)
        self.receiver = Channel(self.messages.put_nowait, self.closed.set)

    async def open(self) -> None:
        ours, theirs = socket_pair()
        await self.sender.open(ours)
        await self.receiver.open(theirs)

    async def next(self) -> Message:
        return await asyncio.wait_for(self.messages.get(), 10)


@asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    both = Ends()
    await both.open()
    yield both
    both.sender.close()
    for closed in (both.closed, both.sender_closed):
        await asyncio.wait_for(closed.wait(), 10)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("rows", [1, 2 * MAX_INLINE_BYTES], ids=["inline", "in-memory"])
async def test_tensors_arrive_as_they_were_sent(rows: int) -> None:
    sent = (
        numeric_tensor("numbers", np.arange(3 * rows, dtype=np.int64).reshape(rows, 3)),
        numeric_tensor("flags", np.array([[True], [False]])),
        bytes_tensor("texts", [b"one", b"", "drei ü".encode()]),
        Tensor("half", BF16, np.array([1.0, -2.5], np.float32)),
        numeric_tensor("none", np.zeros((0, 4), np.float32)),
        numeric_tensor("column", np.arange(6, dtype=np.float32).reshape(2, 3)[:, 1]),
    )
    async with ends() as both:
        both.sender.send(Kind.INFER, {"id": 7}, sent)
        message = await both.next()
    assert (message.kind, message.fields, message.descriptors) == (Kind.INFER, {"id": 7}, ())
    for before, after in zip(sent, message.tensors, strict=True):
        assert (before.name, before.datatype) == (after.name, after.datatype)
        np.testing.assert_array_equal(before.data, after.data)
        assert before.datatype == "BYTES" or after.data.flags.aligned


async def test_a_slow_reader_gets_all_messages_in_order() -> None:
    large = numeric_tensor("x", np.zeros(MAX_INLINE_BYTES, np.uint8))
    async with ends() as both:
        for number in range(2000):  # far more than the socket takes
            both.sender.send(Kind.INFER, {"id": number}, (large,) if number % 100 == 0 else ())
        numbers = [(await both.next()).fields["id"] for _ in range(2000)]
    assert numbers == list(range(2000))


async def test_memory_and_descriptors_are_freed() -> None:
    large = numeric_tensor("x", np.zeros(MAX_INLINE_BYTES, np.uint8))
    async with ends() as both:
        before = descriptors()
        for _ in range(20):
            both.sender.send(Kind.INFER, {}, (large,))
            del large
            large = (await both.next()).tensors[0]
        del large
        assert descriptors() == before


async def test_a_connection_goes_along_and_belongs_to_the_receiver() -> None:
    async with ends() as both:
        ours, theirs = socket.socketpair()
        both.sender.send(Kind.CONNECTION, {}, descriptors=(theirs.detach(),))
        (received,) = (await both.next()).descriptors
        with ours, socket.socket(fileno=received) as connection:
            connection.sendall(b"x")
            assert ours.recv(1) == b"x"
            assert not os.get_inheritable(received)


async def test_unsent_messages_of_a_closed_channel_leave_no_descriptor() -> None:
    async with ends() as both:
        before = descriptors()
        large = numeric_tensor("x", np.zeros(MAX_INLINE_BYTES, np.uint8))
        for _ in range(1000):
            both.sender.send(Kind.INFER, {}, (large,))
        both.receiver.close()
        both.sender.send(Kind.INFER, {}, (large,))
        await asyncio.wait_for(both.sender_closed.wait(), 10)
        both.sender.send(Kind.INFER, {}, (large,))
        assert descriptors() == before - 4


async def test_the_other_end_is_seen_to_close_once() -> None:
    async with ends() as both:
        both.sender.send(Kind.READY, {})
        both.sender.close()
        assert (await both.next()).kind is Kind.READY
        await asyncio.wait_for(both.closed.wait(), 10)
        both.receiver.close()
