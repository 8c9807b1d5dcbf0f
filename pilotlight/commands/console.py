"""`console`: the address of the web console; of a cluster's, as long as the command runs."""

import re
import shutil
import subprocess
from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import Output

app = typer.Typer()

_PATH = "/console"
_SIGN_IN = "sign in there with the namespace as user (none for an operator), the key as password"
_FORWARDING = re.compile(r"Forwarding from (127\.0\.0\.1:\d+) ->")


@app.command()
def console(
    *,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes",
            help="The console of the kubeconfig's cluster, by kubectl port-forward, until Ctrl-C.",
        ),
    ] = False,
    context: Annotated[
        str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Namespace of the gateway's service.")
    ] = "pilotlight",
    service: Annotated[str, typer.Option(help="The gateway's service.")] = "pilotlight-gateway",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Local port; 0 takes a free one.")
    ] = 0,
    gateway: flags.Gateway = None,
    key: flags.Key = "",
    home: flags.Home = None,
    json_: flags.Json = False,
) -> None:
    """Print the address of the web console; with --kubernetes, of a cluster's, until Ctrl-C."""
    output = Output(json_)
    if not kubernetes:
        if context is not None or port:
            raise InvalidInput(["--context and --port need --kubernetes"])
        _print(output, PlatformTarget.of(home, gateway=gateway).gateway_url)
        if key:
            output.note(_SIGN_IN)
        return
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise RequestFailed("--kubernetes needs kubectl, which is not on the PATH")
    chosen = ["--context", context] if context else []
    forward = ["-n", namespace, "port-forward", f"service/{service}", f"{port or ''}:80"]
    _forward([kubectl, *chosen, *forward], output)


def _print(output: Output, url: str) -> None:
    output.result({"console": url + _PATH}, [url + _PATH])


def _forward(command: list[str], output: Output) -> None:
    """Run until it ends, or Ctrl-C, which ends kubectl as well. Raises RequestFailed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := _FORWARDING.match(line):
                    _print(output, f"http://{found[1]}")
            status = process.wait()
        finally:
            process.terminate()
    if status:
        raise RequestFailed(f"kubectl ended with status {status}: its message is above")
