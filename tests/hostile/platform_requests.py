"""Hostile requests to what else a gateway serves: workflows, graphs, applications, the console."""

from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.hostile.heads import HEADERS, NAMES, HttpRequest, is_plain, with_head
from tests.hostile.inference_requests import V1_DOCUMENTS, V1_KEYS, V2_DOCUMENTS, V2_KEYS
from tests.hostile.mutations import ODD_TEXTS, damaged, json_bytes, mutated

APPLICATION: Final = "labels"
"""With the variants `labels-a` and `labels-b`."""
WORKFLOW: Final = "steps"
GRAPH: Final = "graph"
WORKFLOW_SOURCE: Final = """
from pilotlight.workflow import model, workflow

@workflow(deadline="5s")
async def steps(text: str, count: int = 1):
    return (await model("text")(text))["label"]
"""
_SOURCES: Final = (
    WORKFLOW_SOURCE.encode(), b"", b"\xff", b"import os\n", b"from pilotlight.workflow import x\n",
    b"(" * 3_000, b"x" * 100_000, b"@" * 500, b"\0", b"1/0\n",
    b"#" * (1 << 20) + b"#", "def f(é): pass\n".encode("latin-1"),
)  # fmt: skip
_ARGUMENTS: Final = st.sampled_from(
    [{"text": "fox"}, {"text": "fox", "count": 2}, {"instances": ["fox"]}]
)
_RUN_HEADERS: Final = st.lists(
    st.tuples(
        st.sampled_from(
            [
                b"prefer",
                b"accept",
                b"idempotency-key",
                b"x-pilotlight-scheduling",
                b"x-pilotlight-namespace",
                b"x-pilotlight-deadline-ms",
            ]
        ),
        st.sampled_from(
            [
                b"respond-async",
                b"text/event-stream",
                b"",
                b"x" * 300,
                b"greedy",
                b"0",
                b"1",
                b"-1",
                b"nan",
                b"1e999",
                b"other",
                b"a,b",
                b"\xff",
                b"5000",
            ]
        ),
    ),
    max_size=2,
)
_NAMESPACES: Final = ("default", "other", "%E6%BC%A2", "%C3%A9", "a:b", "%20", "..", "n" * 300, "-")


@st.composite
def workflows(draw: DrawFn) -> HttpRequest:
    """Runs, graphs, deployments and readings, with odd names, bodies and headers."""
    name = draw(st.sampled_from([WORKFLOW, WORKFLOW, WORKFLOW, GRAPH]) | NAMES)
    prefix = f"/serving/{draw(st.sampled_from(_NAMESPACES))}/{name}"
    kind = draw(st.sampled_from(["run", "run", "run", "graph", "graph", "read", "deploy"]))
    body = json_bytes(draw(mutated(_ARGUMENTS, ("text", "count", "instances"))))
    method = b"POST"
    if kind == "graph":
        path = f"{prefix}/" if draw(st.booleans()) else f"/serving/default/{GRAPH}"
    elif kind == "run":
        path = f"{prefix if draw(st.integers(0, 2)) == 0 else ''}/v1/workflows/{name}:run"
    else:
        path = draw(st.sampled_from(["", prefix])) + draw(
            st.sampled_from(
                [
                    "/v1/workflows",
                    f"/v1/workflows/{name}",
                    "/v1/workflows/-/runs/x",
                    f"/v1/workflows/{name}/runs/{draw(NAMES)}",
                ]
            )
        )
        method = draw(st.sampled_from([b"GET", b"HEAD", b"PUT", b"DELETE", b"POST"]))
        if kind == "deploy":
            method, path = b"PUT", f"{prefix}/v1/workflows/{draw(NAMES)}"
        elif method in (b"PUT", b"DELETE"):
            path = path.replace(WORKFLOW, "another").replace(GRAPH, "another")
        body = draw(damaged(st.sampled_from(_SOURCES), most=2))
    if draw(st.integers(0, 7)) == 0:
        body = draw(damaged(st.just(body)))
    headers = draw(_RUN_HEADERS | HEADERS)
    return HttpRequest(
        with_head(method, path, body, headers), is_plain(headers) and method != b"HEAD"
    )


@st.composite
def applications(draw: DrawFn) -> HttpRequest:
    """Inference requests to an application, whose gateway chooses the variant."""
    is_v1 = draw(st.booleans())
    documents: SearchStrategy[Any] = V1_DOCUMENTS if is_v1 else V2_DOCUMENTS
    document = draw(mutated(documents.map(lambda each: each[1]), V1_KEYS if is_v1 else V2_KEYS))
    body = json_bytes(document)
    if draw(st.integers(0, 7)) == 0:
        body = draw(damaged(st.just(body)))
    policies = [b"", b"exact", b"sneakpeek", b"grouped", b"refined", b"lo-edf", b"random", b"x"]
    headers = draw(HEADERS)
    if draw(st.integers(0, 2)) == 0:
        headers = [*headers, (b"x-pilotlight-policy", draw(st.sampled_from(policies)))]
    prefix = f"/serving/default/{APPLICATION}" if draw(st.integers(0, 5)) == 0 else ""
    form = "/v1/models/{}:predict" if is_v1 else "/v2/models/{}/infer"
    path = prefix + form.format(APPLICATION)
    return HttpRequest(with_head(b"POST", path, body, headers), is_plain(headers))


@st.composite
def console(draw: DrawFn) -> HttpRequest:
    """Pages and events, with odd names and queries."""
    name = draw(NAMES)
    path = draw(
        st.sampled_from(
            [
                "",
                "/",
                "/requests",
                f"/requests/{name}",
                f"/models/default/{name}",
                "/autoscaler",
                f"/models/{name}/{name}",
                "/api",
                f"/assets/{name}",
                "/assets/../pages.py",
                "/events",
                f"/{name}",
                "//",
                "/assets/%2e%2e/pages.py",
            ]
        )
    )
    fields = ("model", "offset", "limit", "search", "sort", "start", "reason", "slower", "failed")
    values = st.sampled_from(
        [
            "",
            "text",
            "default/text",
            "rate",
            "1",
            "-1",
            "9" * 30,
            "1e9",
            "%00",
            "%ff",
            "é",
            "²",
            "٣",
            "a/b/c",
            "%0d%0a",
            "<b>",
            "&",
            "x" * 5_000,
            "default/",
            "/",
            "nan",
        ]
    ) | st.sampled_from(ODD_TEXTS).filter(lambda text: len(text) < 1_000)
    queries = draw(st.lists(st.tuples(st.sampled_from(fields), values), max_size=3))
    query = "&".join(f"{key}={value}" for key, value in queries)
    target = f"/console{path}" + (f"?{query}" if query else "")
    target = target.translate({c: f"%{c:02x}" for c in (*range(33), 127)})
    method = draw(st.sampled_from([b"GET", b"GET", b"GET", b"HEAD", b"POST", b"DELETE"]))
    headers = draw(HEADERS)
    is_whole = is_plain(headers) and method != b"HEAD"
    return HttpRequest(with_head(method, target, b"", headers), is_whole)
