"""A trivial pod of OpenAI's API: a constant answer, or a stream of events.

`python -m benchmarks.proxy.chat_pod --port PORT`. A body with `"stream":true` gets EVENTS events,
one each INTERVAL_S; other requests a constant answer at once, which any health check accepts.
"""

import argparse
import asyncio
from typing import Final, cast

import httptools
import uvloop

EVENTS: Final = 200
INTERVAL_S: Final = 0.02
_BODY: Final = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","predictions":[1],'
    b'"data":[{"id":"m","object":"model"}],"served_model_name":"m","model_path":"m",'
    b'"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hi"}}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_BODY), _BODY)
)
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT: Final = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
_DONE: Final = b"data: [DONE]\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_EVENT_CHUNK: Final = _chunk(_EVENT)
_END: Final = _chunk(_DONE) + b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._new_request()

    def _new_request(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        is_stream = b'"stream":true' in self._body.replace(b" ", b"")
        self._new_request()
        if is_stream:
            self._transport.write(_HEAD)
            self._send_events(EVENTS)
        else:
            self._transport.write(_ANSWER)

    def _send_events(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if left:
            self._transport.write(_EVENT_CHUNK)
            asyncio.get_running_loop().call_later(INTERVAL_S, self._send_events, left - 1)
        else:
            self._transport.write(_END)


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy.chat_pod")
    _parser.add_argument("--port", type=int, required=True)
    uvloop.run(_serve(_parser.parse_args().port))
