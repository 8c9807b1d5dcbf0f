import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from common.shown_value import shown
from registry.domain.model import ModelName, ModelPolicy, RoutingPolicy, Task
from registry.errors import InvalidModel
from registry.inference_service.reader import read_documents

Change = Callable[[dict[str, Any]], object]


def declaration(name: str = "translate", **annotations: object) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "annotations": {f"pilotlight.io/{key}": value for key, value in annotations.items()},
        },
        "spec": {
            "predictor": {
                "model": {
                    "modelFormat": {"name": "huggingface"},
                    "storageUri": "s3://models/t5-small",
                }
            }
        },
    }


def problems_of(*texts: str | dict[str, Any]) -> list[str]:
    sources = [
        (f"file{index}.yaml", text if isinstance(text, str) else yaml.safe_dump(text))
        for index, text in enumerate(texts, start=1)
    ]
    with pytest.raises(InvalidModel) as caught:
        read_documents(sources)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_reads_an_inference_service() -> None:
    text = textwrap.dedent("""
        apiVersion: serving.kserve.io/v1beta1
        kind: InferenceService
        metadata:
          name: translate
          namespace: team-a
          labels: {app: demo}
          annotations:
            pilotlight.io/policy: colocation
            pilotlight.io/task: text2text-generation
            pilotlight.io/pool: big
            example.com/owner: somebody
        spec:
          predictor:
            minReplicas: 0
            model:
              modelFormat: {name: huggingface}
              protocolVersion: v1
              storageUri: s3://models/t5-small
        """)
    (spec,) = read_documents([("one.yaml", text)])
    assert spec.name == ModelName("team-a", "translate")
    assert spec.storage_uri == "s3://models/t5-small"
    assert (spec.format, spec.protocol, spec.pool) == ("huggingface", "v1", "big")
    assert spec.task is Task.TEXT_TO_TEXT
    assert spec.policy == ModelPolicy(routing=RoutingPolicy.COLOCATION)
    assert ("example.com/owner", "somebody") in spec.annotations
    assert spec.labels == (("app", "demo"),)


def test_defaults_are_the_namespace_given_protocol_v2_and_the_default_pool() -> None:
    (spec,) = read_documents([("a", yaml.safe_dump(declaration()))], default_namespace="team-b")
    assert (spec.name.namespace, spec.protocol, spec.pool) == ("team-b", "v2", "default")


def test_several_documents_and_files_keep_their_order() -> None:
    first = yaml.safe_dump_all([declaration("b"), None, declaration("a")])
    specs = read_documents([("x", first), ("y", yaml.safe_dump(declaration("c")))])
    assert [spec.name.name for spec in specs] == ["b", "a", "c"]


def test_the_generation_changes_only_with_the_weights() -> None:
    def read(change: Change) -> str:
        declared = declaration()
        change(declared)
        (spec,) = read_documents([("x", yaml.safe_dump(declared))])
        return spec.generation

    same = read(lambda declared: None)
    policy = {"pilotlight.io/policy": "random"}
    other_task = {"pilotlight.io/task": "text-embedding"}
    assert read(lambda declared: declared["metadata"]["annotations"].update(policy)) == same
    assert read(lambda declared: declared["metadata"]["annotations"].update(other_task)) != same


def _predictor(**fields: Any) -> Change:
    return lambda declared: declared["spec"]["predictor"].update(fields)


def _model(**changes: object) -> Change:
    return lambda declared: declared["spec"]["predictor"]["model"].update(changes)


def _metadata(**changes: object) -> Change:
    return lambda declared: declared["metadata"].update(changes)


def _top(**changes: object) -> Change:
    return lambda declared: declared.update(changes)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(
            _top(apiVersion="serving.kserve.io/v1alpha1"),
            "apiVersion must be 'serving.kserve.io/v1beta1', was 'serving.kserve.io/v1alpha1'",
            id="wrong-version",
        ),
        pytest.param(_top(spec=None), "spec must be an object, was null", id="no-spec"),
        pytest.param(_top(spec={}), "spec must be an object, was {}", id="empty-spec"),
        pytest.param(_top(spec=[1]), "spec must be an object, was [1]", id="spec-a-list"),
        pytest.param(
            _top(spec={"predictor": {}}),
            "spec.predictor must be an object, was {}",
            id="empty-predictor",
        ),
        pytest.param(
            _top(spec={"predictor": {"minReplicas": 1}}),
            "spec.predictor must have model, or one of sklearn, xgboost, tensorflow, "
            "pytorch, triton, onnx, huggingface, pmml, lightgbm, paddle, catboost; "
            "it has ['minReplicas']",
            id="no-model",
        ),
        pytest.param(
            _top(spec={"predictor": {"model": {}}}),
            "spec.predictor.model must be an object, was {}",
            id="empty-model",
        ),
        pytest.param(
            _top(spec={"predictor": {"sklearn": {}}}),
            "spec.predictor.sklearn must be an object, was {}",
            id="old-predictor",
        ),
        pytest.param(
            _top(spec={"predictor": {"sklearn": {"a": 1}, "onnx": {"a": 1}}}),
            "spec.predictor must have one of model, sklearn, onnx; it has several",
            id="several-predictors",
        ),
        pytest.param(
            _predictor(minReplicas=-1),
            "spec.predictor.minReplicas must be a whole number from 0 to 10000, was -1",
            id="negative-replicas",
        ),
        pytest.param(
            _predictor(minReplicas=3, maxReplicas=2),
            "spec.predictor.minReplicas must be at most maxReplicas, was 3 with maxReplicas 2",
            id="more-replicas-than-the-most",
        ),
        pytest.param(
            _predictor(batcher={"maxBatchSize": "many"}),
            "spec.predictor.batcher.maxBatchSize must be a whole number from 0 to 4096, was 'many'",
            id="batch-that-is-no-number",
        ),
        pytest.param(
            _predictor(logger={"mode": "all"}),
            "spec.predictor.logger.url must be http://HOST[:PORT][/PATH], without user "
            "and fragment, was null",
            id="logger-without-url",
        ),
        pytest.param(
            _model(modelFormat=None),
            "spec.predictor.model.modelFormat must be an object, was null",
            id="no-format",
        ),
        pytest.param(
            _model(modelFormat={"name": "word2vec"}),
            "spec.predictor.model.modelFormat.name must be one of huggingface, "
            "safetensors, pytorch, onnx, xgboost, lightgbm, sklearn, triton, tensorflow, "
            "paddle, pmml, catboost, mlflow, tensorrt, keras, openvino_ir, pytorch-mar, "
            "python, alibi-detect, alibi-explain, was 'word2vec'",
            id="unknown-format",
        ),
        pytest.param(
            _model(protocolVersion="v3"),
            "spec.predictor.model.protocolVersion must be one of v1, v2, grpc-v1, "
            "grpc-v2, was 'v3'",
            id="unknown-protocol",
        ),
        pytest.param(
            _metadata(labels={"a": 1}),
            "metadata.labels[a] must be a string (put it in quotes), was 1",
            id="label-a-number",
        ),
        pytest.param(
            _metadata(annotations={"pilotlight.io/queue-depth": 5}),
            "metadata.annotations[pilotlight.io/queue-depth] must be a string "
            "(put it in quotes), was 5",
            id="annotation-a-number",
        ),
        pytest.param(
            _metadata(annotations={"pilotlight.io/pin": True}),
            "metadata.annotations[pilotlight.io/pin] must be a string (put it in quotes), was true",
            id="annotation-a-boolean",
        ),
        pytest.param(
            _metadata(annotations={"pilotlight.io/canary-of": "translate"}),
            "metadata.annotations[pilotlight.io/canary-of] must name another model, "
            "was 'translate' itself",
            id="its-own-canary",
        ),
        pytest.param(
            lambda declared: declared["spec"]["predictor"].update(canaryTrafficPercent=101),
            "spec.predictor.canaryTrafficPercent must be a whole number from 0 to 100, was 101",
            id="kserves-canary",
        ),
        pytest.param(
            _metadata(annotations=["a"]),
            "metadata.annotations must be an object, was ['a']",
            id="annotations-a-list",
        ),
    ],
)
def test_a_mistake_is_reported_with_file_object_field_and_value(change: Change, line: str) -> None:
    declared = declaration()
    change(declared)
    assert problems_of(declared) == [f"file1.yaml: InferenceService default/translate: {line}"]


@pytest.mark.parametrize(
    "uri",
    [
        5,
        "t5",
        "gs://",
        "https:///m",
        "hf://org",
        "hf://org/",
        "hf://org/m/file",
        "pvc:///m",
        "https://user:secret@host/m",
        "ftp://host/m",
        "s3://",
        "s3://b",
        "s3://key@bucket/m",
        "s3://bucket/../m",
        "s3://bucket/m?x=1",
        "s3://bucket/m#x",
        "file://host/m",
        "file:m",
        "file:///models/m%00",
        "file:///a/%2e%2e/etc",
        "file:///a/./b",
        "s3://buck\net/m",
        "s3://bucket/m\t",
        "s3://[bad/m",
    ],
)
def test_refuses_unsupported_storage_uris(uri: object) -> None:
    declared = declaration()
    declared["spec"]["predictor"]["model"]["storageUri"] = uri
    (problem,) = problems_of(declared)
    assert "spec.predictor.model.storageUri must " in problem
    assert shown(uri) in problem


@pytest.mark.parametrize(
    ("uri", "rule"),
    [
        ("t5", "begin with one of s3://, file://, pvc://"),
        ("file://models/mine", "be an absolute path with three slashes, as file:///models/mine"),
        ("file:models", "be an absolute path with three slashes"),
        ("s3://b/m", "name a bucket of 3 to 63 characters"),
        ("s3://ml/m", "name a bucket of 3 to 63 characters"),
        (f"s3://{'b' * 64}/m", "name a bucket of 3 to 63 characters"),
        ("https://host/m.onnx?sig=a", "have no signature in its query"),
        ("https://host/m.onnx?X-Amz-Signature=a", "have no signature in its query"),
        ("s3://bucket/m?x=1", "have no query"),
        ("s3://bucket/../m", "have no . or .. in its path"),
        ("s3://key@bucket/m", "have no credentials"),
        ("hf://gpt2", "be hf://ORGANISATION/NAME"),
        ("pvc:///m", "name a host, bucket or claim after pvc://"),
    ],
)
def test_says_what_is_wrong_with_a_storage_uri(uri: str, rule: str) -> None:
    declared = declaration()
    declared["spec"]["predictor"]["model"]["storageUri"] = uri
    (problem,) = problems_of(declared)
    assert f"storageUri must {rule}" in problem


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/m",
        "file:///models/m",
        "pvc://claim/m",
        "pvc://claim",
        "hf://org/model",
        "hf://org/model:main",
        "gs://bucket/m",
        "https://host/m.tar.gz",
        "https://host/m.onnx?raw=true",
        "oci://host/image:tag",
    ],
)
def test_accepts_supported_storage_uris(uri: str) -> None:
    declared = declaration()
    declared["spec"]["predictor"]["model"]["storageUri"] = uri
    [spec] = read_documents([("a", yaml.safe_dump(declared))])
    assert spec.storage_uri == uri


@pytest.mark.parametrize("name", [None, "", "T5", "5t", "a_b", "a-", "-a", "a" * 64, 5, "a/b", "ä"])
def test_refuses_names_that_kserve_refuses(name: object) -> None:
    (problem,) = problems_of({**declaration(), "metadata": {"name": name}})
    assert "metadata.name must be at most 63 lower-case letters, digits and '-'" in problem
    assert problem.endswith(f"was {shown(name)}")


def test_two_mistakes_in_one_object_are_reported_together() -> None:
    declared = declaration(**{"target-ongoing-requests": "-3", "polcy": "auto"})
    declared["spec"]["predictor"]["model"]["storageUri"] = "ftp://x"
    problems = problems_of(declared)
    assert len(problems) == 3
    assert "did you mean pilotlight.io/policy?" in "\n".join(problems)


def test_mistakes_of_all_files_and_documents_are_reported_together() -> None:
    problems = problems_of(
        yaml.safe_dump_all([declaration("good"), declaration("bad", pin="maybe")]),
        "a: [1",
        "",
        yaml.safe_dump(["not", "an", "object"]),
        yaml.safe_dump({"kind": "Pod"}),
    )
    starts = [
        "file1.yaml (document 2): InferenceService default/bad: ",
        "file2.yaml: not valid YAML: ",
        "file3.yaml: holds no object; expected kind InferenceService",
        "file4.yaml: must be an object of kind InferenceService, was [",
        "file5.yaml: ",
    ]
    for start in starts:
        assert any(problem.startswith(start) for problem in problems), start


def test_the_same_name_twice_is_a_mistake() -> None:
    assert problems_of(declaration(), declaration()) == [
        "file2.yaml: InferenceService default/translate: metadata.name is declared twice, "
        "also in file1.yaml"
    ]


def test_the_same_name_in_two_namespaces_is_allowed() -> None:
    other = declaration()
    other["metadata"]["namespace"] = "team-a"
    assert len(read_documents([("x", yaml.safe_dump_all([declaration(), other]))])) == 2


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: [1", id="open-list"),
        pytest.param("a: b: c", id="two-colons"),
        pytest.param("\tname: x", id="tab"),
        pytest.param("a: !!python/object:os.system x", id="foreign-tag"),
        pytest.param("a: !!timestamp x", id="no-time"),
        pytest.param("a: 2024-13-45", id="no-such-day"),
        pytest.param("a: !!int ''", id="no-number"),
        pytest.param("a: !!bool x", id="no-boolean"),
        pytest.param("a: \0", id="null-byte"),
        pytest.param("? [a]\n: b", id="list-as-key"),
        pytest.param("a: *nobody", id="unknown-alias"),
        pytest.param("[" * 5000, id="too-deep"),
        pytest.param('a: "\\uD800"', id="half-a-surrogate-pair"),
        pytest.param("kind: a\nkind: b", id="key-twice"),
        pytest.param("metadata:\n  annotations:\n    a: '1'\n    a: '2'", id="deep-key-twice"),
    ],
)
def test_invalid_yaml_is_reported_in_one_line(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith("file1.yaml: not valid YAML: ")
    assert "\n" not in problem


def test_merged_keys_may_be_overridden() -> None:
    text = (
        yaml.safe_dump(declaration())
        .replace("spec:\n", "base: &base {minReplicas: 1}\nspec:\n")
        .replace("  predictor:\n", "  predictor:\n    <<: *base\n    minReplicas: 2\n")
    )
    assert len(read_documents([("x", text)])) == 1


def test_messages_stay_short_with_nested_aliases() -> None:
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    text = "\n".join([*layers, "kind: *a11", "metadata: {name: *a11, labels: {a: *a11}}"])
    assert all(len(problem) < 5_000 for problem in problems_of(text))


@given(st.text(alphabet="abk:-{}[]&*!?|>'\"%@\n\t #0159.<", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(InvalidModel):
        read_documents([("x", text)])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 3_000, id="brackets"),
        pytest.param("{a: " * 3_000, id="braces"),
        pytest.param("- " * 3_000, id="lists"),
        pytest.param(
            "a0: &a0 {k: 1}\n"
            + "".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1},' * 10}]}}\n" for n in range(1, 9)),
            id="merge-keys",
        ),
    ],
)
def test_text_that_would_take_long_is_refused_soon(text: str) -> None:
    began_s = time.thread_time()
    with pytest.raises(InvalidModel):
        read_documents([("a.yaml", text)])
    assert time.thread_time() - began_s < 0.5  # the brackets once took 1.8 s, the keys all memory


@pytest.mark.parametrize(
    ("given", "read"),
    [("v1", "v1"), ("v2", "v2"), ("grpc-v1", "v1"), ("grpc-v2", "v2"), ("", "v2")],
)
def test_kserves_protocols_are_read(given: str, read: str) -> None:
    declared = declaration()
    _model(protocolVersion=given)(declared)
    (spec,) = read_documents([("x", yaml.safe_dump(declared))])
    assert spec.protocol == read


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_predictor(canaryTrafficPercent=100), id="promoted"),
        pytest.param(_predictor(canaryTrafficPercent=None), id="canary-null"),
        pytest.param(lambda declared: declared["spec"].update(canary=[]), id="no-canaries"),
        pytest.param(_predictor(scaleMetric="concurrency"), id="the-measure-that-is-used"),
        pytest.param(_predictor(autoScaling={}, storageUris=[], workerSpec=None), id="empty"),
        pytest.param(_model(confidential={"enabled": False}), id="not-confidential"),
        pytest.param(_model(storage={"schemaPath": ""}), id="no-schema"),
        pytest.param(_metadata(namespace=None), id="namespace-null"),
        pytest.param(_metadata(namespace=""), id="namespace-empty"),
        pytest.param(_metadata(labels={"a": None}, annotations=None), id="metadata-null"),
        pytest.param(
            _predictor(
                minReplicas=None,
                maxReplicas=None,
                timeout=None,
                batcher=None,
                logger=None,
                sklearn=None,
                containers=None,
                serviceAccountName=None,
                tolerations=None,
            ),
            id="nulls-of-a-client-that-writes-all-fields",
        ),
        pytest.param(
            _model(protocolVersion=None, runtime=None, storage=None, resources=None, env=None),
            id="nulls-of-the-model",
        ),
    ],
)
def test_fields_that_ask_nothing_change_nothing(change: Change) -> None:
    declared = declaration()
    change(declared)
    (spec,) = read_documents([("x", yaml.safe_dump(declared))])
    (plain,) = read_documents([("x", yaml.safe_dump(declaration()))])
    assert spec == plain


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(
            _model(confidential={"enabled": True}), "confidential.enabled", id="confidential"
        )
    ],
)
def test_fields_that_ask_for_what_is_not_served_are_refused(change: Change, field: str) -> None:
    declared = declaration()
    change(declared)
    (problem,) = problems_of(declared)
    assert f"{field} is not supported" in problem
