"""The model that a path or a Host header names."""

from __future__ import annotations

import pytest

from gateway.errors import BadRequest, UndeclaredModel
from gateway.http.routes import (
    ModelPath,
    TargetResolver,
    is_inference,
    model_of_host,
    parse_path,
    target_of,
)
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName

KNOWN = {
    ModelName("default", "m"),
    ModelName("team-a", "m"),
    ModelName("team-a", "two-words"),
    ModelName("team-a", "odd-predictor"),
}


@pytest.mark.parametrize(
    ("path", "host", "model", "pod_path"),
    [
        pytest.param(
            "/v1/models/m:predict", "", "default/m", "/v1/models/default~m:predict", id="v1"
        ),
        pytest.param("/v2/models/m/infer", "", "default/m", "/v2/models/default~m/infer", id="v2"),
        pytest.param(
            "/v2/models/m/versions/3/infer",
            "",
            "default/m",
            "/v2/models/default~m/infer",
            id="v2-version",
        ),
        pytest.param(
            "/serving/team-a/m/v1/models/m:predict",
            "",
            "team-a/m",
            "/v1/models/team-a~m:predict",
            id="serving-v1",
        ),
        pytest.param(
            "/serving/team-a/m/v2/models/m/infer",
            "",
            "team-a/m",
            "/v2/models/team-a~m/infer",
            id="serving-v2",
        ),
        pytest.param(
            "/v1/models/m:predict",
            "m.team-a.example.com",
            "team-a/m",
            "/v1/models/team-a~m:predict",
            id="host",
        ),
        pytest.param(
            "/v1/models/m:predict",
            "127.0.0.1:8080",
            "default/m",
            "/v1/models/default~m:predict",
            id="an-address-as-host",
        ),
        pytest.param(
            "/v1/models/%6d:predict", "", "default/m", "/v1/models/default~m:predict", id="escaped"
        ),
        pytest.param(
            "/v1/models/m%3Apredict", "", "default/m", "/v1/models/default~m:predict", id="colon"
        ),
    ],
)
def test_resolves_an_inference_path(path: str, host: str, model: str, pod_path: str) -> None:
    model_path = parse_path(path, host, KNOWN)
    assert is_inference(model_path.path)
    target = target_of(model_path)
    assert str(target.model) == model
    assert target.pod_path == pod_path.encode()
    assert target.name == "m"


@pytest.mark.parametrize(
    ("host", "model"),
    [
        pytest.param("m.team-a.example.com", ModelName("team-a", "m"), id="dots"),
        pytest.param("m.team-a.example.com:8080", ModelName("team-a", "m"), id="with-port"),
        pytest.param("M.Team-A.Example.COM", ModelName("team-a", "m"), id="any-case"),
        pytest.param("m-predictor.team-a.svc", ModelName("team-a", "m"), id="predictor"),
        pytest.param(
            "odd-predictor.team-a.svc", ModelName("team-a", "odd-predictor"), id="named-predictor"
        ),
        pytest.param("m-team-a.example.com", ModelName("team-a", "m"), id="dashes"),
        pytest.param(
            "two-words-team-a.example.com", ModelName("team-a", "two-words"), id="more-dashes"
        ),
        pytest.param("nobody.team-a.example.com", None, id="unknown"),
        pytest.param("localhost:80", None, id="localhost"),
        pytest.param("[::1]:80", None, id="address-6"),
        pytest.param("10.0.0.1", None, id="address-4"),
        pytest.param("", None, id="none"),
        pytest.param("...", None, id="dots-only"),
        pytest.param(":80", None, id="port-only"),
    ],
)
def test_resolves_a_host(host: str, model: ModelName | None) -> None:
    assert model_of_host(host, KNOWN) == model


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/serving/team-a%2Fb/m/v1/models/m:predict", id="escaped-slash-in-namespace"),
        pytest.param("/serving/team-a/m%2fx/v1/models/m:predict", id="escaped-slash-in-name"),
        pytest.param("/serving/team-a/../v1/models/..:predict", id="dots"),
        pytest.param("/serving/a~b/m/v1/models/m:predict", id="tilde"),
        pytest.param("/serving/team-a/%00/v1/models/m:predict", id="nul"),
        pytest.param("/serving/team-a/%5Cm/v1/models/m:predict", id="backslash"),
    ],
)
def test_rejects_names_with_separators(path: str) -> None:
    with pytest.raises(BadRequest):
        target_of(parse_path(path, "", KNOWN))


def test_rejects_an_escaped_slash_in_the_name() -> None:
    with pytest.raises(BadRequest, match="may not contain"):
        target_of(ModelPath("/v1/models/a%2Fb:predict"))


@pytest.mark.parametrize(
    ("path", "host"),
    [
        pytest.param("/serving/team-a/m/v1/models/other:predict", "", id="serving"),
        pytest.param("/v1/models/other:predict", "m.team-a.example.com", id="host"),
    ],
)
def test_rejects_a_path_that_contradicts_prefix_or_host(path: str, host: str) -> None:
    with pytest.raises(UndeclaredModel, match="other"):
        target_of(parse_path(path, host, KNOWN))


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/models/m", "/v2/models/m", "/v1/models/a/b:predict", "/v2/models//infer", "/infer"],
)
def test_is_not_an_inference_path(path: str) -> None:
    assert not is_inference(path)


def test_other_paths_keep_the_namespace_of_their_prefix() -> None:
    assert parse_path("/serving/team-a/m/v2/models/m/ready", "", KNOWN) == ModelPath(
        "/v2/models/m/ready", "team-a", "m"
    )
    assert parse_path("/serving/team-a/m", "", KNOWN).path == "/"


def test_long_paths_are_not_cached() -> None:
    """Clients choose them: thousands of any length would fill the memory."""
    targets = TargetResolver(ClusterState())
    for host in (b"x", b"x" * 100_000):
        for path in (b"/v1/models/m:predict", b"/v1/models/%b:predict" % (b"m" * 100_000)):
            assert targets.resolve(path, host) is not None
    assert sum(len(path) + len(host) for path, host in targets._cache) < 1000
