"""TLS between gateways, pods, autoscaler and schedulers of workflows."""

import asyncio
import socket
import ssl
from pathlib import Path

import grpc
import httpx
import pytest

from common.http_client import HttpClient
from common.http_connection import NotConnected
from common.inference_protocol.grpc_messages import messages
from common.pod_client import PodClient, PodRefused
from common.pod_secret import PodSecret
from common.settings_table import settings_from_fields
from common.tls import PART_NAME, PartTls
from gateway.settings import GatewaySettings, contradictions
from registry.domain.model import Tier
from tests import servers
from tests.certificates import write_certificates
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import TIMEOUT_S, predict

pytestmark = pytest.mark.slow


def secure_channel(port: int, folder: Path) -> grpc.Channel:
    """A client of a pod's gRPC that trusts the folder's authority."""
    return grpc.secure_channel(
        f"127.0.0.1:{port}",
        grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes()),
        options=[("grpc.ssl_target_name_override", PART_NAME)],
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_certificates(tmp_path / "tls")


def test_requests_reach_pods_and_other_pods_encrypted(
    cluster: Cluster, models: Path, tmp_path: Path, folder: Path
) -> None:
    cluster.declare("m", models / "tiny-bert")
    port, grpc_port = servers.free_port(), servers.free_port()
    cluster.pod("entry", tls_dir=str(folder), grpc_port=grpc_port)
    other = cluster.pod("other", tls_dir=str(folder))
    with servers.gateway(
        tmp_path / "gateway",
        redis_url=cluster.redis_url,
        pool=cluster.pool,
        tls_dir=folder,
        tls_port=port,
    ) as gateway:
        for policy in ("random", "remote-proxy", "auto"):
            response = httpx.post(
                f"{gateway.url}/v1/models/m:predict",
                json={"instances": ["x"]},
                headers={"x-pilotlight-policy": policy},
                trust_env=False,
                verify=False,
                timeout=TIMEOUT_S,
            )
            assert response.status_code == 200, response.text
        trusted = ssl.create_default_context(cafile=folder / "ca.crt")
        with (
            socket.create_connection(("localhost", port)) as silent,
            httpx.Client(verify=trusted, trust_env=False, timeout=TIMEOUT_S) as client,
        ):
            silent.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            url = f"https://localhost:{port}/v1/models/m:predict"
            assert client.post(url, json={"instances": ["x"]}).status_code == 200
            assert silent.recv(1 << 10) in (b"", b"\x15\x03\x01\x00\x02\x02F"), "no TLS, no answer"
    with pytest.raises(httpx.TransportError):
        predict(f"http://{other.address}", "m", "x")
    with secure_channel(grpc_port, folder) as channel:
        answer = rpc.Stub(channel).ModelInfer(rpc.infer_texts("default~m", "x"))
        assert answer.model_name


@pytest.mark.parametrize(
    "names",
    [
        pytest.param((PART_NAME,), id="authority", marks=pytest.mark.slow),
        pytest.param(("pods.example.com",), id="name"),
    ],
)
def test_a_gateway_sends_nothing_to_a_pod_it_cannot_verify(
    cluster: Cluster, models: Path, tmp_path: Path, folder: Path, names: tuple[str, ...]
) -> None:
    """Another authority's certificate, or one of this authority for something else."""
    cluster.declare("m", models / "tiny-bert")
    given = write_certificates(tmp_path / "given", *names)
    if PART_NAME not in names:
        (folder / "ca.crt").write_bytes((given / "ca.crt").read_bytes())
    pod = cluster.pod(tls_dir=str(given))
    with servers.gateway(
        tmp_path / "gateway", redis_url=cluster.redis_url, pool=cluster.pool, tls_dir=folder
    ) as gateway:
        response = httpx.post(
            f"{gateway.url}/v1/models/m:predict",
            json={"instances": ["x"]},
            trust_env=False,
            verify=False,
            timeout=TIMEOUT_S,
            headers={"x-pilotlight-deadline-ms": "3000"},
        )
        assert response.status_code in (503, 504)
    assert "Traceback" not in pod.log
    metrics = httpx.get(f"{pod.url}/metrics", verify=False, trust_env=False, timeout=60).text
    assert 'model="default/m"' not in metrics


async def test_autoscaler_and_schedulers_reach_pods_encrypted(
    cluster: Cluster, models: Path, folder: Path, tmp_path: Path
) -> None:
    spec = await asyncio.to_thread(cluster.declare, "m", models / "tiny-bert")
    pod = await asyncio.to_thread(cluster.pod, tls_dir=str(folder))
    for tls, is_trusted in (
        (PartTls(str(folder)), True),
        (PartTls(str(write_certificates(tmp_path / "other"))), False),
        (PartTls(), False),
    ):
        loads = PodClient(PodSecret(), tls, timeout_s=TIMEOUT_S)
        steps = HttpClient(tls=tls)
        if is_trusted:
            await loads.load(pod.address, spec.name.path_segment, Tier.DEVICE, max_other_copies=1)
            found = await steps.request("GET", pod.address, "/v2/health/live", {})
            assert found.status == 200
        else:
            with pytest.raises(PodRefused, match="no response"):
                await loads.load(
                    pod.address, spec.name.path_segment, Tier.DEVICE, max_other_copies=1
                )
            if tls.client is not None:
                with pytest.raises(NotConnected):
                    await steps.request("GET", pod.address, "/v2/health/live", {})
        loads.close()
        steps.close()
    tiers = await asyncio.to_thread(cluster.tiers, spec)
    assert tiers == {pod.name: "device"}


def test_renewed_certificates_are_used_for_new_connections(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    port = servers.free_port()
    pod = cluster.pod(tls_dir=str(folder), grpc_port=port)
    renewed = write_certificates(tmp_path / "renewed")
    trusted = ssl.create_default_context(cafile=renewed / "ca.crt")
    trusted.check_hostname = False
    with httpx.Client(verify=trusted, trust_env=False, timeout=60) as client:
        with pytest.raises(httpx.ConnectError):
            client.get(f"{pod.url}/v2/health/live")
        for name in ("ca.crt", "tls.key", "tls.crt"):
            (renewed / name).replace(folder / name)
        servers.wait_until(lambda: "certificates read again" in pod.log, what="the new files")
        assert client.get(f"{pod.url}/v2/health/live").status_code == 200
    with secure_channel(port, folder) as channel:
        assert rpc.Stub(channel).ServerLive(messages.ServerLiveRequest()).live


def test_files_that_do_not_fit_together_change_nothing(folder: Path, tmp_path: Path) -> None:
    """A kubelet replaces all at once; somebody who copies files by hand does not."""
    tls, other = PartTls(str(folder)), write_certificates(tmp_path / "other")
    before = (folder / "tls.crt").read_bytes()
    (other / "tls.key").replace(folder / "tls.key")
    tls.reload()
    assert shown(tls) == before
    (other / "tls.crt").replace(folder / "tls.crt")
    tls.reload()
    assert shown(tls) != before


def shown(tls: PartTls) -> bytes:
    """The certificate that a server with `tls` shows now."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    assert tls.server is not None
    ends = (client.wrap_bio(to_client, to_server), tls.server.wrap_bio(to_server, to_client, True))
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    der = ends[0].getpeercert(binary_form=True)
    assert der is not None
    return ssl.DER_cert_to_PEM_cert(der).encode()


def test_settings_that_contradict_each_other_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--tls-dir must be a folder with tls\.crt"):
        settings_from_fields(GatewaySettings, {"tls_dir": str(tmp_path)})
    (folder / "ca.crt").write_text("nothing")
    with pytest.raises(ValueError, match=r"--tls-dir must be a folder with tls\.crt"):
        settings_from_fields(GatewaySettings, {"tls_dir": str(folder)})
    settings = settings_from_fields(
        GatewaySettings, {"tls_port": 8443, "workflows_url": "https://scheduler"}
    )
    needs, begins = contradictions(settings)
    assert "--tls-port needs --tls-dir" in needs
    assert "must begin with http://" in begins
