"""Addresses of services: `python -m tests.kubernetes.services --kubeconfig FILE --hosts FOLDER`.

Replaces kube-proxy and the cluster's DNS: listens at every service's cluster address, forwards
connections to ready endpoints in turn, and writes a hosts file per namespace.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

logger = logging.getLogger(__name__)

RETRY_S = 0.5
LOOK_S = 1.0
"""Poll interval for new hosts files."""
CHUNK_BYTES = 1 << 16
TROUBLE = (client.ApiException, HTTPError, OSError)


@dataclass(frozen=True, slots=True)
class Listening:
    """One port of one service."""

    namespace: str
    service: str
    address: str
    port: int
    port_name: str


class Objects:
    """The existing services and endpoint slices, by kind and name."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, str, str], Mapping[str, Any]] = {}

    def note(self, kind: str, event: Mapping[str, Any]) -> None:
        """Apply one event of a watch."""
        item = event["raw_object"]
        key = (kind, item["metadata"]["namespace"], item["metadata"]["name"])
        if event["type"] == "DELETED":
            self._items.pop(key, None)
        else:
            self._items[key] = item

    def of_kind(self, kind: str) -> Iterator[Mapping[str, Any]]:
        return (item for key, item in sorted(self._items.items()) if key[0] == kind)

    def listening(self) -> set[Listening]:
        """The addresses and ports to listen on."""
        return {
            Listening(
                item["metadata"]["namespace"],
                item["metadata"]["name"],
                item["spec"]["clusterIP"],
                port["port"],
                port.get("name", ""),
            )
            for item in self.of_kind("Service")
            if item["spec"].get("clusterIP", "None") not in {"", "None"}
            for port in item["spec"].get("ports", [])
            if port.get("protocol", "TCP") == "TCP"
        }

    def endpoints(self, wanted: Listening) -> list[tuple[str, int]]:
        """The ready endpoints behind a port of a service."""
        return [
            (address, port["port"])
            for item in self._slices(wanted.namespace, wanted.service)
            for port in item.get("ports") or []
            if (port.get("name") or "") == wanted.port_name
            for endpoint in item.get("endpoints") or []
            if endpoint.get("conditions", {}).get("ready", True)
            for address in endpoint["addresses"]
        ]

    def _slices(self, namespace: str, service: str) -> Iterator[Mapping[str, Any]]:
        for item in self.of_kind("EndpointSlice"):
            metadata = item["metadata"]
            owner = metadata.get("labels", {}).get("kubernetes.io/service-name")
            if metadata["namespace"] == namespace and owner == service:
                yield item

    def hosts(self, home: str) -> str:
        """The hosts file of a namespace; a headless service has the addresses of its pods."""
        lines = ["127.0.0.1 localhost"]
        for item in self.of_kind("Service"):
            name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
            address = item["spec"].get("clusterIP", "")
            if item["spec"]["type"] == "ExternalName":
                address = self._address_of(item["spec"]["externalName"])
            addresses = {address} if address != "None" else self._pods(namespace, name)
            qualified = f"{name}.{namespace}"
            for text in sorted(addresses - {""}):
                names = [f"{qualified}.svc.cluster.local", f"{qualified}.svc", qualified]
                lines.append(" ".join([text, *names, *([name] if namespace == home else [])]))
        return "\n".join([*lines, ""])

    def _address_of(self, host: str) -> str:
        """Of the service with this name in the cluster; empty: there is none."""
        name, namespace, *_ = *host.split("."), ""
        metadata = {"name": name, "namespace": namespace}
        for item in self.of_kind("Service"):
            if metadata.items() <= item["metadata"].items():
                return str(item["spec"].get("clusterIP", ""))
        return ""

    def _pods(self, namespace: str, service: str) -> set[str]:
        return {
            address
            for item in self._slices(namespace, service)
            for endpoint in item.get("endpoints") or []
            for address in endpoint["addresses"]
        }


class Proxy:
    """Listens for all services, in one event loop."""

    def __init__(self, hosts: Path) -> None:
        self._objects = Objects()
        self._servers: dict[Listening, asyncio.Server] = {}
        self._turns = itertools.count()
        self._hosts = hosts
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow changes until cancelled."""
        loop = asyncio.get_running_loop()

        def note(kind: str, event: Mapping[str, Any]) -> None:
            self._objects.note(kind, event)
            self._changed.set()

        core, discovery = client.CoreV1Api(), client.DiscoveryV1Api()
        for kind, listing in (
            ("Service", core.list_service_for_all_namespaces),
            ("EndpointSlice", discovery.list_endpoint_slice_for_all_namespaces),
        ):
            hear = functools.partial(note, kind)
            tell = functools.partial(loop.call_soon_threadsafe, hear)
            threading.Thread(target=_follow, args=(listing, tell), daemon=True).start()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_S)
            self._changed.clear()
            await self._listen()
            self._write_hosts()

    async def _listen(self) -> None:
        wanted = self._objects.listening()
        for gone in self._servers.keys() - wanted:
            self._servers.pop(gone).close()
        for new in wanted - self._servers.keys():
            try:
                self._servers[new] = await asyncio.start_server(
                    functools.partial(self._serve, new), new.address, new.port
                )
            except OSError as error:
                logger.warning("%s: %s", new, error)

    def _write_hosts(self) -> None:
        # Written in place, because containers mount the files themselves.
        for path in self._hosts.iterdir():
            content = self._objects.hosts(path.name).encode()
            if path.read_bytes() != content:
                with path.open("r+b") as file:
                    file.write(content)
                    file.truncate()

    async def _serve(
        self, service: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        endpoints = self._objects.endpoints(service)
        turn = next(self._turns)
        with contextlib.suppress(OSError):
            for number in range(len(endpoints)):
                host, port = endpoints[(turn + number) % len(endpoints)]
                try:
                    other_reader, other_writer = await asyncio.open_connection(host, port)
                except OSError:
                    continue
                await asyncio.gather(_pipe(reader, other_writer), _pipe(other_reader, writer))
                break
        writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


def _follow(listing: Callable[..., Any], tell: Callable[[Mapping[str, Any]], object]) -> None:
    while True:
        try:
            # Objects deleted between two watches stay listed; their endpoints then do not respond.
            for event in watch.Watch().stream(listing, timeout_seconds=600):
                tell(event)
        except TROUBLE as error:
            logger.warning("watch: %s", error)
            time.sleep(RETRY_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--hosts", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    config.load_kube_config(arguments.kubeconfig)
    asyncio.run(Proxy(arguments.hosts).run())


if __name__ == "__main__":
    main()
