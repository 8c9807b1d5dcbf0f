"""The model that a path or a Host header names."""

import pytest

from gateway.errors import BadRequest, UndeclaredModel
from gateway.http.routes import (
    ModelPath,
    TargetResolver,
    is_inference,
    parse_path,
    refuse_other_name,
    target_of,
)
from gateway.http.targets import KnownNames, model_of_host
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelRecord, ModelSpec


def known_names(*names: str, domain: str = "") -> KnownNames:
    state = ClusterState()
    for name in map(ModelName.parse, names):
        state.models[name] = ModelRecord(ModelSpec(name, "file:///m"))
    state.models_version += 1
    return KnownNames(state, domain=domain)


def named(model: str | None) -> ModelName | None:
    return None if model is None else ModelName.parse(model)


DECLARED = ("default/m", "team-a/m", "team-a/two-words", "team-a/odd-predictor")
KNOWN = known_names(*DECLARED)


@pytest.mark.parametrize(
    ("path", "host", "model"),
    [
        pytest.param("/v1/models/m:predict", "", "default/m", id="v1"),
        pytest.param("/v2/models/m/infer", "", "default/m", id="v2"),
        pytest.param("/v2/models/m/versions/3/infer", "", "default/m", id="v2-version"),
        pytest.param("/serving/team-a/m/v1/models/m:predict", "", "team-a/m", id="serving-v1"),
        pytest.param("/serving/team-a/m/v2/models/m/infer", "", "team-a/m", id="serving-v2"),
        pytest.param("/v1/models/m:predict", "m.team-a.example.com", "team-a/m", id="host"),
        pytest.param("/v1/models/m:predict", "127.0.0.1:8080", "default/m", id="address-as-host"),
        pytest.param("/v1/models/%6d:predict", "", "default/m", id="escaped"),
        pytest.param("/v1/models/m%3Apredict", "", "default/m", id="colon"),
    ],
)
def test_resolves_an_inference_path(path: str, host: str, model: str) -> None:
    model_path = parse_path(path, host, KNOWN)
    assert is_inference(model_path.path)
    target = target_of(model_path)
    assert str(target.model) == model
    version, end = ("v1", ":predict") if "/v1/" in path else ("v2", "/infer")
    assert target.pod_path.decode() == f"/{version}/models/{model.replace('/', '~')}{end}"
    assert target.name == "m"


@pytest.mark.parametrize(
    ("host", "model"),
    [
        pytest.param("m.team-a.example.com", "team-a/m", id="dots"),
        pytest.param("m.team-a.example.com:8080", "team-a/m", id="with-port"),
        pytest.param("M.Team-A.Example.COM", "team-a/m", id="any-case"),
        pytest.param("m-predictor.team-a.svc", "team-a/m", id="predictor"),
        pytest.param("odd-predictor.team-a.svc", "team-a/odd-predictor", id="named-predictor"),
        pytest.param("m-team-a.example.com", "team-a/m", id="dashes"),
        pytest.param("two-words-team-a.example.com", "team-a/two-words", id="more-dashes"),
        pytest.param("nobody.team-a.example.com", "team-a/nobody", id="undeclared-name"),
        pytest.param("m.team-b.example.com", None, id="undeclared-namespace"),
        pytest.param("models.example.com", None, id="another-domain"),
        pytest.param("pilotlight-gateway.default.svc.cluster.local", None, id="own-service"),
        pytest.param("gateway", None, id="one-label"),
        pytest.param("host.docker.internal:8080", None, id="a-container's-host"),
        pytest.param("localhost:80", None, id="localhost"),
        pytest.param("[::1]:80", None, id="address-6"),
        pytest.param("10.0.0.1", None, id="address-4"),
        pytest.param("", None, id="none"),
        pytest.param("...", None, id="dots-only"),
        pytest.param(":80", None, id="port-only"),
    ],
)
def test_resolves_a_host(host: str, model: str | None) -> None:
    assert model_of_host(host, KNOWN) == named(model)


@pytest.mark.parametrize(
    ("host", "model"),
    [
        pytest.param("x.team-b.example.com", "team-b/x", id="of-the-path"),
        pytest.param("x-predictor.team-b.svc.cluster.local", "team-b/x", id="predictor"),
        pytest.param("x-team-a.example.com", "team-a/x", id="dashes"),
        pytest.param("x-team-b.example.com", None, id="dashes-of-no-namespace"),
        pytest.param("y.team-b.example.com", None, id="neither-name-nor-namespace"),
        pytest.param("y.team-a.example.com", "team-a/y", id="another-name-in-a-namespace"),
    ],
)
def test_a_host_of_an_undeclared_model_names_it(host: str, model: str | None) -> None:
    """Lest its namesake in another namespace answer."""
    assert model_of_host(host, KNOWN, "x") == named(model)


@pytest.mark.parametrize(
    ("host", "model"),
    [
        pytest.param("m.team-a.models.example.com", "team-a/m", id="declared"),
        pytest.param("m-team-a.models.example.com", "team-a/m", id="declared-with-dashes"),
        pytest.param("y.team-b.models.example.com", "team-b/y", id="undeclared"),
        pytest.param("y-team-b.models.example.com", "b/y-team", id="undeclared-with-dashes"),
        pytest.param("x-team-b.models.example.com", "team-b/x", id="undeclared-of-the-path"),
        pytest.param("gateway.models.example.com", None, id="one-label-in-the-domain"),
        pytest.param("models.example.com", None, id="the-domain"),
        pytest.param("team-a.team-a.example.com", None, id="outside-of-the-domain"),
        pytest.param("m.team-a.svc", "team-a/m", id="declared-outside-of-the-domain"),
    ],
)
def test_with_the_models_domain_it_is_exact(host: str, model: str | None) -> None:
    known = known_names(*DECLARED, domain="models.example.com")
    assert model_of_host(host, known, "x") == named(model)


def test_namespaces_are_those_that_have_or_had_models() -> None:
    state = ClusterState()
    names = KnownNames()
    names.add(state)
    assert names.namespaces == frozenset()
    assert model_of_host("ghost.team.example.com", names) is None
    name = ModelName("team", "m")
    state.models[name] = ModelRecord(ModelSpec(name, "file:///m"))
    state.models_version += 1
    assert model_of_host("ghost.team.example.com", names) == ModelName("team", "ghost")
    del state.models[name]
    state.models_version += 1
    assert model_of_host("ghost.team.example.com", names) == ModelName("team", "ghost")
    assert names.namespaces == {"team"}


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/v2/models/other/ready", "m.team-a.example.com"),
        ("/v2/models/other/versions/1", "m.team-a.example.com"),
        ("/v1/models/other", "m.team-a.example.com"),
        ("/serving/team-a/m/v2/models/other", ""),
    ],
)
def test_other_paths_may_not_contradict_the_prefix_or_host(path: str, host: str) -> None:
    with pytest.raises(UndeclaredModel, match="the path names model 'other'"):
        refuse_other_name(parse_path(path, host, KNOWN))


@pytest.mark.parametrize("path", ["/v2/models/m/ready", "/v1/models/m", "/v2/models", "/healthz"])
def test_other_paths_of_the_hosts_model_are_its_own(path: str) -> None:
    refuse_other_name(parse_path(path, "m.team-a.example.com", KNOWN))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/serving/team-a%2Fb/m/v1/models/m:predict", id="escaped-slash-in-namespace"),
        pytest.param("/serving/team-a/m%2fx/v1/models/m:predict", id="escaped-slash-in-name"),
        pytest.param("/v1/models/a%2Fb:predict", id="escaped-slash-without-prefix"),
        pytest.param("/serving/team-a/../v1/models/..:predict", id="dots"),
        pytest.param("/serving/a~b/m/v1/models/m:predict", id="tilde"),
        pytest.param("/serving/team-a/%00/v1/models/m:predict", id="nul"),
        pytest.param("/serving/team-a/%5Cm/v1/models/m:predict", id="backslash"),
    ],
)
def test_rejects_names_with_separators(path: str) -> None:
    with pytest.raises(BadRequest, match="may not contain"):
        target_of(parse_path(path, "", KNOWN))


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
    state = ClusterState()
    targets = TargetResolver(KnownNames(state))
    for host in (b"x", b"x" * 100_000):
        for path in (b"/v1/models/m:predict", b"/v1/models/%b:predict" % (b"m" * 100_000)):
            assert targets.resolve(path, host) is not None
    assert sum(len(path) + len(host) for path, host in targets._cache) < 1000


def names_with_second(name: str) -> KnownNames:
    """team-a/m, whose arguments name it otherwise."""
    state = ClusterState()
    model = ModelName("team-a", "m")
    state.models[model] = ModelRecord(ModelSpec(model, "file:///m", served_name=name))
    state.models_version += 1
    return KnownNames(state)


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/serving/team-a/m/v1/models/iris:predict", ""),
        ("/serving/team-a/m/v2/models/iris/infer", ""),
        ("/serving/team-a/m/v2/models/iris/versions/2/infer", ""),
        ("/v1/models/iris%3Apredict", "m.team-a.example.com"),
        ("/v2/models/iris/infer", "m-predictor.team-a.example.com"),
    ],
)
def test_a_model_is_called_by_its_second_name_at_its_own_address(path: str, host: str) -> None:
    names = names_with_second("iris")
    target = TargetResolver(names).resolve(path.encode(), host.encode())
    assert target is not None
    assert (str(target.model), target.name) == ("team-a/m", "iris")
    assert b"/models/team-a~m" in target.pod_path
    own = path.replace("iris", "m")
    own_target = TargetResolver(names).resolve(own.encode(), host.encode())
    assert own_target is not None
    assert (own_target.name, own_target.pod_path) == ("m", target.pod_path)
    other = path.replace("iris", "other")
    assert TargetResolver(names).resolve(other.encode(), host.encode()) is None


@pytest.mark.parametrize("path", ["/v1/models/iris", "/v2/models/iris/ready"])
def test_metadata_of_a_model_is_asked_for_by_its_second_name(path: str) -> None:
    names = names_with_second("iris")
    found = parse_path(f"/serving/team-a/m{path}", "", names)
    refuse_other_name(found)
    assert found.path == path.replace("iris", "m")


@pytest.mark.parametrize("path", ["/v2/models/{}/infer", "/v2/models/{}/versions/1/infer"])
def test_a_triton_model_is_called_by_its_folders_name_at_its_own_host(path: str) -> None:
    state, names = ClusterState(), KnownNames()
    names.add(state)
    model = ModelName("default", "isvc-triton")
    state.models[model] = ModelRecord(ModelSpec(model, "s3://models/repo", format="triton"))
    state.models_version += 1
    targets, host = TargetResolver(names), b"isvc-triton.default.example.com"
    target = targets.resolve(path.format("cifar10").encode(), host)
    assert target is not None
    assert (str(target.model), target.name) == ("default/isvc-triton", "cifar10")
    assert target.pod_path == b"/v2/models/default~isvc-triton/infer"
    for name in ("a%0d%0ab", "a%2Fb", "%C3%A9"):
        assert targets.resolve(path.format(name).encode(), host) is None
    plain = targets.resolve(path.format("cifar10").encode(), b"10.0.0.1")
    assert plain is not None
    assert str(plain.model) == "default/cifar10"


def test_a_second_name_means_nothing_at_other_addresses() -> None:
    names = names_with_second("iris")
    target = TargetResolver(names).resolve(b"/v1/models/iris:predict", b"")
    assert target is not None
    assert str(target.model) == "default/iris"


def test_pods_learn_the_second_name_of_an_openai_request() -> None:
    names = names_with_second("org/chat")
    path = b"/serving/team-a/m/openai/v1/chat/completions"
    target = TargetResolver(names).resolve(path, b"")
    assert target is not None
    assert (str(target.model), target.name) == ("team-a/m", "org/chat")
