"""`make demo-llm`: language models by turns in a budget for one, asked by openai's client."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import openai

from pilotlight.output import Output

TOKENS: Final = 12
_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Streamed:
    """One streamed response."""

    request_id: str
    start: str
    """The tier that the model came from."""
    first_s: float
    """From the request to the first token."""
    tokens: int
    text: str


def stream_chat(client: openai.OpenAI, model: str) -> Streamed:
    """Raises openai.APIError where the request is not answered in full."""
    began_s = time.monotonic()
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": "Which of you is awake?"}],
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    first_s, tokens, text = 0.0, 0, ""
    for chunk in raw.parse():
        first_s = first_s or time.monotonic() - began_s
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    headers = raw.headers
    start = headers.get("x-pilotlight-start", "")
    return Streamed(headers.get("x-request-id", ""), start, first_s, tokens, text)


def run_turns(home: Path, output: Output, models: Sequence[str]) -> list[Streamed]:
    """Ask each model in turn, and show after each response who sleeps."""
    gateway = json.loads((home / "platform.json").read_text())["gateway"]
    output.line(f"watch it in a browser: {gateway}/console")
    answers = []
    with openai.OpenAI(
        base_url=f"{gateway}/openai/v1", api_key="none", max_retries=0, timeout=_TIMEOUT_S
    ) as client:
        for model in models:
            answer = stream_chat(client, model)
            output.line(
                f"\n{model}: from tier {answer.start}, first token after {answer.first_s:.1f} s,"
                f" {answer.tokens} tokens: {answer.text!r}"
            )
            _show(home, output, "get", "models")
            answers.append(answer)
    _show(home, output, "explain", answers[-1].request_id)
    return answers


def problems(answers: Sequence[Streamed], models: Sequence[str]) -> list[str]:
    """What the demo promises and did not show."""
    found = []
    for index, (model, answer) in enumerate(zip(models, answers, strict=True)):
        if answer.tokens != TOKENS:
            found.append(f"request {answer.request_id} has {answer.tokens} tokens, not {TOKENS}")
        if model in models[:index] and answer.start == "remote":
            found.append(f"{model} is asked again, and came from remote")
    return found


def _show(home: Path, output: Output, *words: str) -> None:
    output.line(f"$ pilotlight {' '.join(words)}")
    command = [sys.executable, "-P", "-m", "pilotlight", *words, "--home", str(home)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    names = sys.argv[2:]
    if found := problems(run_turns(Path(sys.argv[1]), Output(as_json=False), names), names):
        sys.exit("; ".join(found))
