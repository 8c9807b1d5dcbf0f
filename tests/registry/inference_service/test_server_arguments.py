"""Arguments of KServe's servers: what they mean here, and which of them mean nothing."""

from typing import Any

import pytest
import yaml

from registry.domain.model import (
    Answers,
    EngineChoice,
    ModelSpec,
    Precision,
    Scores,
    Task,
    TaskOptions,
)
from registry.domain.records import decode, encode_spec
from registry.errors import InvalidModel
from registry.inference_service.reader import read_documents


def document(
    arguments: list[Any],
    *,
    annotations: dict[str, str] | None = None,
    kind: str = "huggingface",
    uri: str | None = "s3://bucket/model",
    **fields: Any,
) -> dict[str, Any]:
    model = {"args": arguments, **({"storageUri": uri} if uri else {}), **fields}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "model", "annotations": annotations or {}},
        "spec": {"predictor": {"model": {"modelFormat": {"name": kind}, **model}}},
    }


def read(declared: dict[str, Any]) -> ModelSpec:
    (spec,) = read_documents([("file", yaml.safe_dump(declared))])
    assert decode(ModelSpec, encode_spec(spec)) == spec
    return spec


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--model_name", "iris"], id="in-two-texts"),
        pytest.param(["--model_name=iris"], id="in-one"),
        pytest.param(["--model-name", "iris"], id="with-a-hyphen"),
        pytest.param(
            ["--workers=2", "--model_name=iris", "--http_port", "8080"], id="among-others"
        ),
    ],
)
@pytest.mark.parametrize("kind", ["sklearn", "huggingface", "onnx"])
def test_the_name_of_the_model_is_read_from_the_arguments(arguments: list[str], kind: str) -> None:
    assert read(document(arguments, kind=kind)).served_name == "iris"


def test_the_name_is_read_from_the_older_form_of_a_predictor() -> None:
    declared = document([])
    predictor = {"sklearn": {"storageUri": "s3://bucket/m", "args": ["--model_name", "iris"]}}
    declared["spec"]["predictor"] = predictor
    assert read(declared).served_name == "iris"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(
            ["--return_probabilities"],
            TaskOptions(answers=Answers.KSERVE, scores=Scores.ALL),
            id="probabilities",
        ),
        pytest.param(
            ["--return_raw_logits"],
            TaskOptions(answers=Answers.KSERVE, scores=Scores.LOGITS),
            id="logits",
        ),
        pytest.param(
            ["--backend", "huggingface"], TaskOptions(answers=Answers.KSERVE), id="backend"
        ),
        pytest.param(["--backend=auto"], TaskOptions(), id="any-backend"),
        pytest.param(
            ["--disable_lower_case", "--disable_special_tokens"],
            TaskOptions(keeps_case=True, adds_special_tokens=False),
            id="tokenizer",
        ),
        pytest.param(["--max_length", "128"], TaskOptions(max_tokens=128), id="length"),
        pytest.param(["--max-model-len=64"], TaskOptions(max_tokens=64), id="vllm-length"),
    ],
)
def test_options_of_the_task_are_read(arguments: list[str], expected: TaskOptions) -> None:
    spec = read(document(arguments))
    assert spec.options == expected
    assert spec.warnings == ()
    is_changed = expected != TaskOptions()
    assert (spec.generation != read(document([])).generation) is is_changed


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("sequence_classification", Task.TEXT_CLASSIFICATION),
        ("token_classification", Task.TOKEN_CLASSIFICATION),
        ("fill_mask", Task.FILL_MASK),
        ("text_generation", Task.TEXT_GENERATION),
        ("text2text_generation", Task.TEXT_TO_TEXT),
        ("text_embedding", Task.TEXT_EMBEDDING),
        ("embed", Task.TEXT_EMBEDDING),
        ("text-classification", Task.TEXT_CLASSIFICATION),
    ],
)
def test_the_task_is_read(name: str, task: Task) -> None:
    assert read(document([f"--task={name}"])).task is task


def test_the_type_of_the_weights_is_read() -> None:
    assert read(document(["--dtype=bfloat16"])).precision is Precision.BFLOAT16
    assert read(document(["--dtype", "float"])).precision is Precision.FLOAT32
    assert read(document(["--dtype=auto"])).precision is None


def test_a_model_of_the_hub_needs_no_storage_uri() -> None:
    spec = read(document(["--model_id=org/name", "--model_revision", "abc"], uri=None))
    assert spec.storage_uri == "hf://org/name:abc"
    assert read(document(["--model_id", "org/name"], uri=None)).storage_uri == "hf://org/name"
    assert read(document(["--model_id=/mnt/models"])).storage_uri == "s3://bucket/model"


def test_annotations_choose_answers_over_arguments() -> None:
    by_annotation = {"pilotlight.io/answers": "pilotlight", "pilotlight.io/scores": "all"}
    spec = read(document(["--return_raw_logits"], annotations=by_annotation))
    assert spec.options == TaskOptions(answers=Answers.OWN, scores=Scores.ALL)


@pytest.mark.parametrize(
    ("arguments", "annotations", "message"),
    [
        pytest.param(
            ["--task=question_answering"], {}, "--task must be one of text_embedding", id="task"
        ),
        pytest.param(
            ["--task=fill_mask"],
            {"pilotlight.io/task": "text-embedding"},
            "task\\] is text-embedding, but .*--task asks for fill-mask",
            id="two-tasks",
        ),
        pytest.param(
            ["--dtype=bfloat16"],
            {"pilotlight.io/dtype": "float32"},
            "dtype\\] is float32, but",
            id="two-types",
        ),
        pytest.param(["--dtype=int3"], {}, "--dtype must be one of auto, float32", id="type"),
        pytest.param(["--model_id=bert"], {}, "--model_id must be ORG/NAME", id="id"),
        pytest.param(
            ["--model_id=org/other"],
            {},
            "has storageUri .* and the argument --model_id",
            id="two-models",
        ),
        pytest.param(["--max_length=many"], {}, "--max_length must be a number", id="length"),
        pytest.param(["--return_probabilities", "--return_raw_logits"], {}, "both", id="scores"),
        pytest.param(["--model_name"], {}, "--model_name must be a name", id="no-name"),
        pytest.param(["--model_name", "a\\nb"], {}, "--model_name must be a name", id="name"),
        pytest.param([5], {}, "args must be a list of texts", id="number"),
    ],
)
def test_mistakes_in_arguments_are_named(
    arguments: list[Any], annotations: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidModel, match=message):
        read(document(arguments, annotations=annotations))


def test_what_means_nothing_here_is_named() -> None:
    arguments = [
        "--task=fill_mask",
        "--trust_remote_code",
        "--tensor_input_names",
        "ids,mask",
        "--dtype=half",
        "--backend=tgi",
        "--model_revision=abc",
        "--workers",
        "2",
    ]
    declared = document(arguments, resources={"limits": {"cpu": "1"}}, env=[{"name": "A"}])
    path = "spec.predictor.model"
    expected = [
        f"{path}.resources",
        f"{path}.env A",
        f"{path}.args --trust_remote_code",
        f"{path}.args --tensor_input_names",
        f"{path}.args --dtype",
        f"{path}.args --backend",
        f"{path}.args --workers",
        f"{path}.args --model_revision",
    ]
    assert [each.partition(" has")[0] for each in read(declared).warnings] == expected


def test_other_servers_have_a_name_only() -> None:
    spec = read(document(["--task=fill_mask", "--model_name=x"], kind="onnx"))
    [warning] = spec.warnings
    assert spec.task is None
    assert warning.startswith("spec.predictor.model.args --task has no effect")


ENGINE = {"pilotlight.io/engine": "vllm"}


def test_arguments_of_vllm_are_kept_in_its_form() -> None:
    arguments = ["--enforce-eager", "--max_num_seqs", "8", "--max-model-len=512", "--backend=vllm"]
    spec = read(document(arguments, annotations=ENGINE))
    assert (spec.engine, spec.engine_args) == (
        EngineChoice.VLLM,
        ("--enforce-eager", "--max-num-seqs=8"),
    )
    assert spec.options.max_tokens == 512
    assert spec.generation != read(document(arguments[:-1])).generation


def test_the_backend_vllm_is_the_engine_vllm() -> None:
    assert read(document(["--backend=vllm"])).engine is EngineChoice.VLLM
    with pytest.raises(InvalidModel, match=r"engine\] is own, but .* --backend asks for vllm"):
        read(document(["--backend=vllm"], annotations={"pilotlight.io/engine": "own"}))


@pytest.mark.parametrize("argument", ["--trust_remote_code", "--uds=/tmp/x", "--api-key=x"])
def test_arguments_that_vllm_does_not_take_here_are_refused_by_name(argument: str) -> None:
    name = argument.partition("=")[0]
    with pytest.raises(InvalidModel, match=f"args {name} is none that vLLM takes here: leave it"):
        read(document([argument], annotations=ENGINE))
