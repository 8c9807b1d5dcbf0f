"""Streams of external processing by grpcio's client."""

import queue
from typing import Any

import grpc

from gateway.picker.process import DESTINATION, PROCESS, messages


class Stream:
    """One stream of external processing, in the place of Envoy."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._sent: queue.Queue[Any] = queue.Queue()
        self.answers = channel.stream_stream(
            PROCESS.decode(),
            request_serializer=messages.ProcessingRequest.SerializeToString,
            response_deserializer=messages.ProcessingResponse.FromString,
        )(iter(self._sent.get, None), timeout=30)

    def send(self, kind: str, subset: list[str] | None = None, **headers: str) -> Any:
        message = messages.ProcessingRequest()
        if subset is not None:
            hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            listed = hint.fields[f"{DESTINATION}-subset"].list_value
            listed.SetInParent()
            for address in subset:
                listed.values.add(string_value=address)
        head = getattr(message, kind)
        head.end_of_stream = True
        for name, value in headers.items():
            name = f":{name}" if name in ("path", "method", "authority", "status") else name
            head.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())
        self._sent.put(message)
        return next(self.answers)

    def end(self) -> None:
        self._sent.put(None)
