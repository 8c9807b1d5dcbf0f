"""vLLM's server: health, metrics, completions, chat, sleep and adapters, of one model."""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


class _Engine:
    def __init__(self, model: Path, names: list[str], arguments: list[str]) -> None:
        self.names, self.arguments = names, arguments
        config = json.loads((model / "config.json").read_text())
        self.faults: dict[str, Any] = config.get("small", {})
        self.adapters: dict[str, str] = {}
        self.is_sleeping = False
        self.counts: Counter[str] = Counter()

    async def health(self, _: Request) -> Response:
        return PlainTextResponse("")

    async def metrics(self, _: Request) -> Response:
        lines = [f"vllm:{name} {value}" for name, value in self.counts.items()]
        lines.append(f"vllm:num_requests_waiting {self.faults.get('waiting', 0)}")
        return PlainTextResponse("\n".join(lines))

    async def sleep(self, request: Request) -> Response:
        if self.faults.get("sleep") == "refused":
            return JSONResponse({"error": {"message": "no memory to sleep"}}, 500)
        self.is_sleeping = True
        return JSONResponse({"level": int(request.query_params["level"])})

    async def wake(self, _: Request) -> Response:
        if self.faults.get("wake") == "fails":
            return JSONResponse({"error": {"message": "no memory to wake"}}, 500)
        self.is_sleeping = False
        return JSONResponse({"status": "awake"})

    async def sleeping(self, _: Request) -> Response:
        return JSONResponse({"is_sleeping": self.is_sleeping})

    async def load_adapter(self, request: Request) -> Response:
        body = await request.json()
        if problem := self.faults.get("adapter"):
            return JSONResponse({"error": {"message": problem}}, 400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return PlainTextResponse("ok")

    async def unload_adapter(self, request: Request) -> Response:
        self.adapters.pop((await request.json())["lora_name"], None)
        return PlainTextResponse("ok")

    async def complete(self, request: Request) -> Response:
        """Words that name the model; `small_pause_s` of a body lies between them."""
        body = await request.json()
        if body["model"] not in (*self.names, *self.adapters):
            return JSONResponse({"error": {"message": f"no model {body['model']}"}}, 404)
        if self.is_sleeping:
            os._exit(3)  # as a kernel that reads memory which is gone
        if body.get("small_ends"):
            os._exit(4)
        words = [body["model"], "says", *(["more"] * (body.get("max_tokens", 16) - 2))]
        self.counts["num_requests_running"] += 1
        if body.get("stream"):
            events = self._events(body, words)
            return StreamingResponse(events, media_type="text/event-stream")
        pause_s = body.get("small_pause_s", 0)
        while pause_s > 0 and not await request.is_disconnected():  # as vLLM looks
            await asyncio.sleep(0.05)
            pause_s -= 0.05
        self.counts["aborted"] += pause_s > 0
        self.counts["num_requests_running"] -= 1
        prompts = body.get("prompt", "")
        texts = [" ".join(words)] * (len(prompts) if isinstance(prompts, list) else 1)
        choices = [
            {"index": index, "text": text, "message": {"role": "assistant", "content": text}}
            for index, text in enumerate(texts)
        ]
        answer = {"model": body["model"], "choices": choices, "seen": body, "pid": os.getpid()}
        content = [{"type": "output_text", "text": texts[0], "annotations": []}]
        answer["output"] = [{"type": "message", "role": "assistant", "content": content}]
        answer["data"] = [{"index": 0, "embedding": [0.5, 0.25]}]
        return JSONResponse(
            {**answer, "arguments": self.arguments, "id": _id(request), "counts": self.counts}
        )

    async def _events(self, body: dict[str, Any], words: list[str]) -> AsyncIterator[bytes]:
        try:
            for word in words:
                choice = {"index": 0, "text": word, "delta": {"content": word}}
                yield b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
                await asyncio.sleep(body.get("small_pause_s", 0))
            if body.get("stream_options"):
                usage = {"completion_tokens": len(words)}
                last = {"choices": [], "usage": usage, "seen": body}
                yield b"data: " + json.dumps(last).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.counts["aborted"] += 1
            raise
        finally:
            self.counts["num_requests_running"] -= 1


def _id(request: Request) -> str:
    return request.headers.get("x-request-id", "")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--uds")
    known, _ = parser.parse_known_args()
    engine = _Engine(known.model, known.served_model_name, sys.argv[1:])
    match engine.faults.get("start"):
        case "out-of-memory":
            raise MemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        case "hangs":
            time.sleep(600)
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    child.start()  # as vLLM's own engine process
    posts = {
        "/v1/completions": engine.complete, "/v1/chat/completions": engine.complete,
        "/v1/responses": engine.complete, "/v1/embeddings": engine.complete,
        "/v1/load_lora_adapter": engine.load_adapter,
        "/v1/unload_lora_adapter": engine.unload_adapter,
        "/sleep": engine.sleep, "/wake_up": engine.wake,
    }  # fmt: skip
    gets = {"/health": engine.health, "/metrics": engine.metrics, "/is_sleeping": engine.sleeping}
    routes = [Route(path, call, methods=["POST"]) for path, call in posts.items()]
    routes += [Route(path, call) for path, call in gets.items()]
    uvicorn.run(Starlette(routes=routes), uds=known.uds, log_level="warning")
    child.terminate()


if __name__ == "__main__":
    main()
