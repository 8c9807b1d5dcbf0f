"""Which models a pool's rules let in, and whose credentials read them."""

import pytest

from registry.domain.model import ModelName, ModelPolicy, ModelSpec
from registry.domain.tenant_rules import (
    UNKNOWN,
    Access,
    Quota,
    TenantRules,
    access_problem,
    decode_rules,
    encode_rules,
    ends_access,
    machine_rules,
    merged,
    parse_rules,
    quota_problem,
)

RULES = parse_rules(
    namespaces="team, other",
    prefixes="team=s3://team/ pvc://claim/team file:///models/team hf://acme/tiny; *=gs://shared",
    quotas="*=pinned:1 memory:2Gi; other=pinned:0,min-copies:3",
)


def model(uri: str, *, namespace: str = "team", credentials: str = "") -> ModelSpec:
    return ModelSpec(ModelName(namespace, "m"), uri, credentials=credentials)


@pytest.mark.parametrize(
    ("uri", "access"),
    [
        pytest.param("s3://team/t5", Access.POOL, id="granted"),
        pytest.param("s3://team-secret/t5", Access.MODEL, id="another-bucket-of-that-beginning"),
        pytest.param("gs://shared/t5", Access.POOL, id="granted-to-everyone"),
        pytest.param("gs://shared2/t5", Access.MODEL, id="not-granted"),
        pytest.param("pvc://claim/team/t5", Access.POOL, id="folder-of-a-claim"),
        pytest.param("pvc://claim/team2/t5", None, id="another-folder-of-the-claim"),
        pytest.param("pvc://claim/other", None, id="a-claim-is-the-pools"),
        pytest.param("file:///models/team/t5", Access.POOL, id="granted-folder"),
        pytest.param("file:///var/cache/pilotlight/other~m@1", None, id="the-cache-of-others"),
        pytest.param("FILE:///models/team/t5", None, id="scheme-in-capitals"),
        pytest.param("file:////models/team/t5", None, id="doubled-slash"),
        pytest.param("http://127.0.0.1:6379/", None, id="http"),
        pytest.param("webhdfs://10.0.0.1:50070/x", None, id="webhdfs"),
        pytest.param("hdfs://10.0.0.1/x", None, id="hdfs"),
        pytest.param("oci://10.0.0.1/x", None, id="oci"),
        pytest.param("https://example.com/x.zip", Access.MODEL, id="public-address"),
        pytest.param("hf://acme/tiny:main", Access.POOL, id="revision"),
        pytest.param("hf://acme/tiny2", Access.MODEL, id="public-model"),
    ],
)
def test_the_pools_credentials_read_only_what_is_granted(uri: str, access: Access | None) -> None:
    assert RULES.access(model(uri)) is access
    assert (access_problem(model(uri), RULES, "default") is None) == (access is not None)


def test_other_namespaces_have_their_own_grants() -> None:
    assert RULES.access(model("s3://team/t5", namespace="other")) is Access.MODEL
    assert RULES.access(model("file:///models/team/t5", namespace="other")) is None
    assert RULES.access(model("gs://shared/t5", namespace="stranger")) is None
    problem = access_problem(model("gs://shared/t5", namespace="stranger"), RULES, "default")
    assert problem is not None
    assert "'stranger'" in problem


def test_a_models_own_credentials_come_before_the_pools() -> None:
    own = model("s3://team/t5", credentials="serviceaccount/reader")
    assert RULES.access(own) is Access.MODEL
    assert RULES.access(model("pvc://claim/team", credentials="secret/s")) is Access.POOL


@pytest.mark.parametrize("uri", ["s3://any/x", "hf://any/x", "https://any.example/x"])
def test_a_pool_without_grants_reads_for_every_namespace_without_its_credentials(uri: str) -> None:
    assert parse_rules().access(model(uri, namespace="any")) is Access.MODEL


@pytest.mark.parametrize("uri", ["file:///etc", "http://10.0.0.1/x", "pvc://claim/x"])
def test_a_pool_without_grants_reads_no_files_claims_or_private_addresses(uri: str) -> None:
    assert parse_rules().access(model(uri)) is None
    assert TenantRules().access(model(uri)) is Access.POOL  # one machine, one owner


def test_the_longest_grant_is_found() -> None:
    rules = parse_rules(prefixes="team=file:///models; *=file:///models/shared *")
    assert rules.granting_prefix("team", "file:///models/shared/x") == "file:///models/shared"
    assert rules.granting_prefix("team", "file:///models/x") == "file:///models"
    assert rules.granting_prefix("other", "file:///x") == "*"


def declared(name: str, *, namespace: str = "team", **policy: object) -> ModelSpec:
    made = ModelPolicy(**policy)  # type: ignore[arg-type]  # fields by name
    return ModelSpec(ModelName(namespace, name), "s3://team/x", policy=made)


def test_quotas_count_the_namespaces_earlier_models() -> None:
    first, second = declared("a", pin=True), declared("b", pin=True)
    assert quota_problem(first, [], RULES) is None
    problem = quota_problem(second, [first], RULES)
    assert problem is not None
    assert "pinned" in problem
    assert quota_problem(declared("c"), [first, second], RULES) is None


def test_a_namespaces_own_quota_comes_before_that_of_every_namespace() -> None:
    assert RULES.quota("team", Quota.MEMORY) == 2 << 30
    assert RULES.quota("other", Quota.PINNED) == 0
    assert RULES.quota("team", Quota.MIN_COPIES) is None
    two, copies = declared("a", namespace="other", min_copies=2), {"namespace": "other"}
    assert quota_problem(two, [], RULES) is None
    assert quota_problem(declared("b", min_copies=2, **copies), [two], RULES) is not None
    assert quota_problem(declared("b", min_copies=1, **copies), [two], RULES) is None


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        pytest.param({"namespaces": "Team"}, "'Team'", id="namespace"),
        pytest.param({"prefixes": "s3://team/"}, "NAMESPACE=VALUES", id="no-namespace"),
        pytest.param({"prefixes": "team=models"}, "begin with a scheme", id="no-scheme"),
        pytest.param({"quotas": "team=memory:2X"}, "memory:2X", id="unit"),
        pytest.param(
            {"quotas": "team=cores:2"}, "must be pinned or min-copies", id="unknown-quota"
        ),
        pytest.param({"quotas": "team=pinned:-1"}, "pinned:-1", id="negative"),
    ],
)
def test_mistakes_name_the_value(texts: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rules(**texts)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ValueError, match="namespaces") as caught:
        parse_rules(namespaces="A", prefixes="x", quotas="y=z")
    assert len(str(caught.value).splitlines()) == 3


def test_rules_are_the_same_after_the_registry() -> None:
    assert decode_rules(encode_rules(RULES)) == RULES


def test_entries_add_up_and_the_smaller_quota_holds() -> None:
    one = parse_rules(namespaces="a", prefixes="a=s3://a", quotas="a=pinned:3 memory:1Gi")
    other = parse_rules(namespaces="b", prefixes="a=s3://b", quotas="a=pinned:2")
    both = merged([one, other])
    assert both.namespaces == {"a", "b"}
    assert both.prefixes_of("a") == ("s3://a", "s3://b")
    assert [both.quota("a", kind) for kind in (Quota.PINNED, Quota.MEMORY)] == [2, 1 << 30]
    assert not merged([]).admits("a")


def test_rules_that_were_not_read_grant_nothing_and_say_so() -> None:
    spec = model("hf://any/x")
    assert UNKNOWN.access(spec) is None
    assert "not in the registry yet" in (access_problem(spec, UNKNOWN, "default") or "")


@pytest.mark.parametrize(
    ("uri", "now", "reason"),
    [
        pytest.param("s3://team/m", RULES, None, id="unchanged"),
        pytest.param("s3://team/m", parse_rules(), "no longer granted", id="anonymous-from-now"),
        pytest.param("pvc://claim/team", parse_rules(), "may not read pvc://", id="refused"),
        pytest.param("s3://other/m", merged([]), "does not admit namespace 'team'", id="left"),
        pytest.param("s3://other/m", parse_rules(prefixes="*=*"), None, id="granted-now"),
        pytest.param("pvc://claim/other", parse_rules(), None, id="never-granted"),
    ],
)
def test_what_was_read_under_a_grant_may_not_be_used_without_it(
    uri: str, now: TenantRules, reason: str | None
) -> None:
    found = ends_access(model(uri), RULES, now)
    assert found is None if reason is None else reason in (found or "")


def test_one_machine_grants_everything_unless_told_what() -> None:
    assert machine_rules("", "", "").is_open
    limited = machine_rules("", "", "team=memory:1Gi")
    assert limited.is_open
    assert limited.quota("team", Quota.MEMORY) == 1 << 30
    assert not machine_rules("team", "", "").is_open
    assert not machine_rules("", "team=s3://a", "").is_open
