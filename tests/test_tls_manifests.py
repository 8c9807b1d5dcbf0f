"""The components `tls`, `workflows-tls` and `redis-tls`, rendered."""

import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from common.settings_table import settings_from_fields
from common.tls import PART_NAME
from gateway.settings import GatewaySettings, contradictions
from registry.errors import RegistryUnavailable
from registry.redis.acl import Role, acl_file
from registry.redis.client import Registry
from registry.redis.server_address import find_server
from tests.certificates import write_certificates
from tests.rendered import OBJECTS, kustomized
from tests.servers import end_process, free_port, wait_until

FOLDER, SECRET = "/etc/pilotlight/tls", "pilotlight-tls"
USERS = "/etc/pilotlight/redis/users.acl"
PARTS = {
    ("Deployment", "pilotlight-gateway"),
    ("Deployment", "pilotlight-autoscaler"),
    ("Deployment", "pilotlight-autoscaler-gpu"),
    ("Deployment", "pilotlight-workflows"),
    ("InferenceService", "pool"),
    ("InferenceService", "pool-gpu"),
}


@pytest.fixture(scope="module")
def rendered() -> OBJECTS:
    return kustomized(
        "pools", "workflows", "monitoring", "tls", "workflows-tls", "redis-tls", pools=["gpu"]
    )


def pod(objects: OBJECTS, key: tuple[str, str]) -> dict[str, Any]:
    spec = objects[key]["spec"]
    return dict(spec["predictor"] if "predictor" in spec else spec["template"]["spec"])


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


@pytest.mark.parametrize("key", sorted(PARTS), ids="/".join)
def test_every_part_has_the_certificate_and_speaks_tls(
    rendered: OBJECTS, key: tuple[str, str]
) -> None:
    found = pod(rendered, key)
    [container] = found["containers"]
    [volume] = [each for each in found["volumes"] if each["name"] == "tls"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "tls"]
    assert (volume["secret"]["secretName"], mount["mountPath"]) == (SECRET, FOLDER)
    assert environment(container)["PILOTLIGHT_TLS_DIR"] == FOLDER
    served = {"pilotlight-workflows", "pool", "pool-gpu"}  # probes of others have plain ports
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(name, {}).get("httpGet", {})
        assert probe.get("scheme") == ("HTTPS" if key[1] in served else None)


def test_gateway_and_schedulers_find_each_other(rendered: OBJECTS, tmp_path: Path) -> None:
    [gateway] = pod(rendered, ("Deployment", "pilotlight-gateway"))["containers"]
    [scheduler] = pod(rendered, ("Deployment", "pilotlight-workflows"))["containers"]
    given = environment(gateway)
    settings = settings_from_fields(
        GatewaySettings,
        {
            "tls_dir": str(write_certificates(tmp_path / "tls")),
            "tls_port": int(given["PILOTLIGHT_TLS_PORT"]),
            "workflows_url": given["PILOTLIGHT_WORKFLOWS_URL"],
        },
    )
    assert contradictions(settings) == []
    assert environment(scheduler)["PILOTLIGHT_GATEWAY_URL"] == "https://pilotlight-gateway"
    for name in ("pilotlight-gateway", "pilotlight-workflows"):
        service = rendered["Service", name]["spec"]
        [encrypted] = [each for each in service["ports"] if each["port"] == 443]
        [container] = pod(rendered, ("Deployment", name))["containers"]
        assert encrypted["targetPort"] in {each["name"] for each in container["ports"]}
    allowed = rendered["NetworkPolicy", "clients-to-gateway"]["spec"]["ingress"][0]["ports"]
    assert {"port": "https"} in allowed
    [endpoint] = rendered["PodMonitor", "pilotlight-pools"]["spec"]["podMetricsEndpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", PART_NAME)


def test_the_certificate_has_the_names_that_parts_expect(rendered: OBJECTS) -> None:
    spec = rendered["Certificate", SECRET]["spec"]
    assert spec["secretName"] == SECRET
    assert {PART_NAME, "pilotlight-gateway", "pilotlight-redis"} <= set(spec["dnsNames"])
    issuer = rendered["Issuer", spec["issuerRef"]["name"]]["spec"]["ca"]["secretName"]
    assert issuer == rendered["Certificate", "pilotlight-authority"]["spec"]["secretName"]


async def test_all_reach_a_redis_that_speaks_tls_only(rendered: OBJECTS) -> None:
    keys = [*PARTS, ("Deployment", "pilotlight-controller")]
    urls = {
        environment(pod(rendered, key)["containers"][0])["PILOTLIGHT_REDIS_URL"] for key in keys
    }
    hosts = rendered["Certificate", SECRET]["spec"]["dnsNames"]
    for url in urls:
        address = await find_server(re.sub("password_file=[^&]*&", "", url), "k")
        assert address.use_tls
        assert address.authorities_file == f"{FOLDER}/ca.crt"
        assert address.host in hosts


async def test_redis_serves_with_the_components_arguments(
    rendered: OBJECTS, tmp_path: Path
) -> None:
    executable = shutil.which("redis-server")
    if executable is None:
        pytest.skip("needs a redis-server with TLS, such as Debian's")
    folder, port = write_certificates(tmp_path / "tls"), free_port()
    [container] = pod(rendered, ("Deployment", "pilotlight-redis"))["containers"]
    users = tmp_path / "users.acl"
    users.write_text(acl_file({role: ["a-password"] for role in map(str, Role)}))
    texts = {"6379": str(port), "/tmp": str(tmp_path), USERS: str(users)}
    arguments = [texts.get(each, each.replace(FOLDER, str(folder))) for each in container["args"]]
    process = subprocess.Popen(  # noqa: ASYNC220 - before anything else runs
        [executable, *arguments], stdout=subprocess.DEVNULL
    )

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, what="Redis listens")
        trusted = f"localhost:{port}?ssl_ca_certs={folder}/ca.crt"
        login = "gateway:a-password@"
        await (await Registry.connect(f"rediss://{login}{trusted}", "p")).close()
        for url in (
            f"rediss://{trusted}",
            f"rediss://{login}localhost:{port}",
            f"redis://{login}localhost:{port}",
        ):
            with pytest.raises(RegistryUnavailable):
                await Registry.connect(url, "p")
    finally:
        end_process(process)
