"""What `pilotlight doctor` reads, from a small API server."""

import asyncio

from pilotlight.doctor.cluster_facts import ClusterFacts, read_cluster
from tests.controller.api_server import ApiServer, connect, running

FIELDS = (
    "buildDate", "compiler", "gitCommit", "gitTreeState", "gitVersion", "goVersion", "platform",
)  # fmt: skip
VERSION = {**dict.fromkeys(FIELDS, "x"), "major": "1", "minor": "34+"}


def read(server: ApiServer) -> ClusterFacts:
    async def run() -> ClusterFacts:
        async with running(server) as url:
            api = connect(url)
            try:
                return await read_cluster(api, "pilotlight")
            finally:
                await api.close()

    return asyncio.run(run())


def test_every_list_is_read_or_its_refusal_kept() -> None:
    server = ApiServer(documents={"/version/": VERSION})
    server.put({"kind": "InferenceService", "metadata": {"namespace": "team", "name": "m"}})
    server.fault = lambda request: 403 if request.path.endswith("/nodes") else None
    found = read(server)
    assert found.version == (1, 34)
    assert [each["metadata"]["name"] for each in found.items("services")] == ["m"]
    assert set(found.denied) == {"nodes"}
    assert {"crds", "deployments", "network_policies", "secrets"} <= found.lists.keys()


def test_an_empty_list_of_metadata_only_is_null() -> None:
    """As the API server answers, here of a namespace without Secrets."""
    nothing: dict[str, object] = {"metadata": {}, "items": None}
    secrets = "/api/v1/namespaces/pilotlight/secrets"
    server = ApiServer(documents={"/version/": VERSION, secrets: nothing})
    assert read(server).items("secrets") == []
