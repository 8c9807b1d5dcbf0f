"""Text of generating steps as it comes, by `async for`."""

import os
import signal

import pytest

from tests import servers
from tests.workflows.service.harness import WorkflowHarness, runners_of

pytestmark = pytest.mark.slow

SPEAK = """
@workflow(deadline="60s")
async def speak(text: str, name: str):
    async for piece in model(name)(text):
        yield piece
"""


def test_text_comes_as_it_is_generated(harness: WorkflowHarness) -> None:
    name = harness.deploy(SPEAK)
    arguments = {"text": "one two three", "name": "words-hold"}
    headers = {"accept": "text/event-stream"}
    url = f"{harness.url}/{name}:run"
    with harness.pool.client.stream("POST", url, json=arguments, headers=headers) as response:
        lines = (line for line in response.iter_lines() if line)
        assert [next(lines), next(lines)] == ["event: item", 'data: "one "']
        harness.release()  # nothing came after the first word until now
        rest = list(lines)
    assert rest[:4] == ["event: item", 'data: "two "', "event: item", 'data: "three "']
    assert rest[4] == "event: end"


def test_an_iterated_step_has_its_whole_text_as_output(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def both(text: str):
            step = model("words")(text, max_tokens=8, temperature=0.5, stop="stop")
            pieces = [piece async for piece in step]
            judged = await model("judge")(texts=step["text"])
            return [pieces, (await step)["text"], judged["texts"]]
        """
    )
    assert harness.result(name, {"text": "a b"}) == [["a ", "b "], "a b ", "a b "]


def test_a_step_that_was_begun_before_gives_its_text_as_one_piece(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def late(text: str):
            step = model("writer")(text)
            await model("judge")(texts=text)
            return [piece async for piece in step]
        """
    )
    assert harness.result(name, {"text": "a b"}) == ["a b"]


def test_two_texts_are_iterated_side_by_side(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        import asyncio

        async def said(text):
            return [piece async for piece in model("words")(text)]

        @workflow
        async def both():
            return await asyncio.gather(said("a b"), said("c d"))
        """
    )
    pieces = harness.result(name)  # two that arrive together may come as one
    assert ["".join(each) for each in pieces] == ["a b ", "c d "]


def test_a_text_that_broke_off_goes_on_at_another_pod(harness: WorkflowHarness) -> None:
    name = harness.deploy(SPEAK)
    location = harness.start(name, {"text": "one two three", "name": "words-break"})
    document = harness.wait_ended(location)
    assert document["result"] == ["one ", "two ", "three "]
    assert document["steps"][0]["attempts"] > 1


def test_a_resumed_run_gets_the_same_pieces(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow(deadline="60s")
        async def judged(text: str):
            found = []
            async for piece in model("words-hold")(text):
                found.append((await model("judge")(texts=piece))["texts"])
                print(piece)
            return found
        """
    )
    location = harness.start(name, {"text": "one two three"})

    def has_first_judgement(resumptions: int) -> bool:
        found = harness.status(location)
        return (found["resumptions"], found.get("printed")) == (resumptions, "one \n")

    servers.wait_until(lambda: has_first_judgement(0), what="first judgement")
    [pid] = runners_of(harness, name)
    os.kill(pid, signal.SIGKILL)
    servers.wait_until(lambda: has_first_judgement(1), what="the same judgement again")
    harness.release()  # what comes before that would be one piece
    document = harness.wait_ended(location)
    assert document["result"] == ["one ", "two ", "three "], document
    assert len(document["steps"]) == 4


@pytest.mark.parametrize(
    ("call", "status", "reason", "text"),
    [
        pytest.param("model('nope')('a')", 404, "model-not-found", "nope", id="model"),
        pytest.param("model('words')(beams=3)", 400, "bad-input", "max_tokens", id="option"),
        pytest.param("model('words')(max_tokens=3)", 400, "bad-input", "without", id="no text"),
        pytest.param("model('words')(['a', 'b'])", 400, "bad-input", "one text", id="two texts"),
        pytest.param("begun", 422, "unknown-output", "features", id="no text in the outputs"),
    ],
)
def test_what_cannot_be_iterated_is_named(
    harness: WorkflowHarness, call: str, status: int, reason: str, text: str
) -> None:
    name = harness.deploy(
        f"""
        @workflow(deadline="20s")
        async def f():
            begun = model("embed")(features=[1.0])
            await begun
            return [piece async for piece in {call}]
        """
    )
    response = harness.run(name)
    assert (response.status_code, response.json()["reason"]) == (status, reason), response.text
    assert text in response.json()["error"]
