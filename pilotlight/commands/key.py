"""`key`: makes the API keys that `up --api-keys` asks of requests."""

import re
import secrets
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.authentication import OPERATOR
from pilotlight.commands import flags
from pilotlight.errors import InvalidInput, PilotlightError
from pilotlight.output import Output
from pilotlight.state_dir import StateDir

app = typer.Typer()
keys = typer.Typer(
    name="key", no_args_is_help=True, help="Make API keys of namespaces, for `up --api-keys`."
)
app.add_typer(keys)

_KEY_BYTES: Final = 24
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@keys.command()
def new(
    namespace: Annotated[
        str,
        typer.Argument(
            help=f"The namespace that the key is for; {OPERATOR}: metrics, explanations, console."
        ),
    ],
    *,
    folder: Annotated[
        Path | None,
        flags.setting(
            "API_KEYS",
            "Folder with a file of keys for each namespace.",
            "--api-keys",
            show_default="keys in --home",
        ),
    ] = None,
    home: flags.Home = None,
    json_: flags.Json = False,
) -> None:
    """Write a new key of a namespace beside its others, and print it.

    A platform started with `up --api-keys` of the same folder takes it within seconds. To withdraw
    a key, delete its line.
    """
    if namespace != OPERATOR and not _NAMESPACE.fullmatch(namespace):
        raise InvalidInput(
            [
                f"a namespace is at most 63 lower-case letters, digits and '-', or {OPERATOR}, was"
                f" {namespace!r}"
            ]
        )
    target = (folder or StateDir.of(home).root / "keys").expanduser().absolute()
    key = secrets.token_hex(_KEY_BYTES)
    try:
        add_key(target, namespace, key)
    except OSError as error:
        raise PilotlightError(f"cannot write the key to {target}: {error.strerror}") from error
    output = Output(json_)
    output.result({"namespace": namespace, "key": key, "folder": str(target)}, [key])
    output.note(f"in {target / namespace}; start the platform with: up --api-keys {target}")


def add_key(folder: Path, namespace: str, key: str) -> None:
    """Append a key to a namespace's file, which a gateway may read meanwhile. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / namespace
    before = file.read_text("utf-8") if file.exists() else ""
    lines = [line for line in before.splitlines() if line.strip()]
    with tempfile.NamedTemporaryFile(  # readable by its owner alone
        "w", dir=folder, prefix=".", delete=False
    ) as written:
        written.write("\n".join([*lines, key]) + "\n")
    Path(written.name).replace(file)
