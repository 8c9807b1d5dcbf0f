"""What appears in a model server's repository, and under which names."""

import json
from pathlib import Path

import pytest

from runtime.engines.server_engine import ServerRepository, rename_config, server_name
from runtime.errors import LoadFailed, ModelInvalid

NAME = "team~iris~0123456789"


def _place(
    tmp_path: Path, files: dict[str, str], *, server: str, model_format: str = "sklearn"
) -> Path:
    """The folder that the server sees for a model with these files."""
    source = tmp_path / "source"
    for path, text in files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    repository = ServerRepository(tmp_path / "repository")
    repository.open("pod a")
    repository.place(NAME, source, list(files), model_format=model_format, server=server)
    repository.close()
    return tmp_path / "repository" / NAME


def _visible(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_names_differ_for_namespaces_and_generations() -> None:
    keys = ["a/m@1", "b/m@1", "a/m@2"]
    assert len({server_name(key) for key in keys}) == 3


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(["1/model.onnx", "config.pbtxt"], {"1/model.onnx", "config.pbtxt"}, id="own"),
        pytest.param(["net.onnx"], {"1/model.onnx"}, id="one-file"),
        pytest.param(["model.onnx", "config.pbtxt"], {"1/model.onnx", "config.pbtxt"}, id="flat"),
        pytest.param(
            ["cifar10/config.pbtxt", "cifar10/1/model.pt"],
            {"config.pbtxt", "1/model.pt"},
            id="repository-of-one-model",
        ),
        pytest.param(
            ["model.xml", "model.bin"], {"1/model.xml", "1/model.bin"}, id="several-files"
        ),
        pytest.param(
            ["config.pbtxt", "labels.txt", "1/model.onnx", "2/model.onnx"],
            {"config.pbtxt", "labels.txt", "1/model.onnx", "2/model.onnx"},
            id="versions",
        ),
    ],
)
def test_triton_gets_its_layout(files: list[str], expected: set[str], tmp_path: Path) -> None:
    folder = _place(tmp_path, dict.fromkeys(files, "text"), server="triton")
    assert _visible(folder) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param('name: "cifar10"\nplatform: "x"', f'name: "{NAME}"\nplatform: "x"', id="name"),
        pytest.param("name : 'cifar10'", f'name : "{NAME}"', id="quotes-and-blanks"),
        pytest.param(
            'input [ { name: "cifar10" } ]\nname: "c"',
            f'input [ {{ name: "cifar10" }} ]\nname: "{NAME}"',
            id="names-of-inputs-stay",
        ),
        pytest.param('# name: "c"\nbackend: "x"', '# name: "c"\nbackend: "x"', id="comment"),
        pytest.param(
            'backend: "name: {"\nname: "c"', f'backend: "name: {{"\nname: "{NAME}"', id="text"
        ),
    ],
)
def test_the_name_in_tritons_configuration_is_that_of_the_folder(
    config: str, expected: str
) -> None:
    assert rename_config(config, NAME) == expected


def test_mlserver_gets_settings(tmp_path: Path) -> None:
    folder = _place(tmp_path, {"iris.joblib": "x", "notes.md": ""}, server="mlserver")
    assert json.loads((folder / "model-settings.json").read_text()) == {
        "name": NAME,
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": "./iris.joblib"},
    }


def test_settings_of_a_loaded_model_are_hidden_and_its_files_stay(tmp_path: Path) -> None:
    folder = _place(tmp_path, {"iris.joblib": "x"}, server="mlserver")
    ServerRepository(folder.parent).hide_loaded(NAME)
    assert _visible(folder) == {"iris.joblib"}


def test_mlservers_own_settings_stay_but_for_the_name(tmp_path: Path) -> None:
    own = {"name": "mine", "implementation": "my.Runtime", "parameters": {"uri": "./m"}}
    files = {"model-settings.json": json.dumps(own), "m": "x"}
    folder = _place(tmp_path, files, server="mlserver", model_format="huggingface")
    assert json.loads((folder / "model-settings.json").read_text()) == {**own, "name": NAME}
    assert (tmp_path / "source" / "model-settings.json").read_text() == json.dumps(own)


@pytest.mark.parametrize("text", ["[1]", "{", "\udcff"])
def test_settings_that_are_no_object_are_refused(text: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model-settings.json").write_bytes(text.encode(errors="surrogateescape"))
    repository = ServerRepository(tmp_path / "repository")
    repository.open("pod a")
    with pytest.raises(ModelInvalid, match=r"model-settings\.json"):
        repository.place(
            NAME, source, ["model-settings.json"], model_format="sklearn", server="mlserver"
        )
    repository.close()
    assert not (tmp_path / "repository" / NAME).exists()


def test_a_format_without_a_known_runtime_of_mlserver_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="modelFormat 'paddle'"):
        _place(tmp_path, {"m": "x"}, server="mlserver", model_format="paddle")


def test_files_are_links_and_survive_the_removal(tmp_path: Path) -> None:
    folder = _place(tmp_path, {"1/model.onnx": "x"}, server="triton")
    source = tmp_path / "source" / "1" / "model.onnx"
    assert (folder / "1" / "model.onnx").samefile(source)
    ServerRepository(tmp_path / "repository").remove(NAME)
    assert source.read_text() == "x"
    assert not folder.exists()


def test_a_missing_file_fails_the_load(tmp_path: Path) -> None:
    repository = ServerRepository(tmp_path / "repository")
    repository.open("pod a")
    with pytest.raises(LoadFailed, match="cannot be put"):
        repository.place(NAME, tmp_path, ["gone.onnx"], model_format="onnx", server="triton")
    repository.close()


def test_a_new_pod_removes_what_an_earlier_one_left_and_nothing_else(tmp_path: Path) -> None:
    folder = _place(tmp_path, {"1/model.onnx": "x"}, server="triton")
    others = folder.with_name("of-the-user")
    others.mkdir()
    repository = ServerRepository(folder.parent)
    repository.open("pod b")
    repository.close()
    assert (folder.exists(), others.exists()) == (False, True)


def test_a_repository_has_one_pod(tmp_path: Path) -> None:
    first, second = ServerRepository(tmp_path), ServerRepository(tmp_path)
    first.open("pod a")
    with pytest.raises(LoadFailed, match="is used by pod a"):
        second.open("pod b")
    first.close()
    second.open("pod b")
    second.close()


def test_a_repository_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LoadFailed, match="cannot be written"):
        ServerRepository(tmp_path / "file" / "repository").open("pod a")
