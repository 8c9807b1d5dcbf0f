"""HTTP/1.1 messages with odd framing, and well-formed ones to any endpoint."""

from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.hostile.heads import HEADERS, NAMES, HttpRequest, is_plain, with_head
from tests.hostile.mutations import ODD_TEXTS, damaged, json_bytes, mutated

_FRAMINGS: Final = (
    b"content-length: 2\r\n\r\n{}", b"content-length: 5\r\n\r\n{}", b"content-length: 0\r\n\r\n{}",
    b"content-length: -1\r\n\r\n{}", b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    b"content-length: 99999999999999999999\r\n\r\n", b"content-length: 1e1\r\n\r\n{}", b"\r\n",
    b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nx: y\r\n\r\n",
    b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"transfer-encoding: xchunked\r\n\r\n{}", b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
    b"upgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    b"expect: 200-ok\r\ncontent-length: 2\r\n\r\n{}",
    b"connection: close\r\ncontent-length: 2\r\n\r\n{}",
)  # fmt: skip
_PATHS: SearchStrategy[str] = st.sampled_from(
    [
        "/v1/models/text:predict",
        "/v2/models/text/infer",
        "/v2/models/text/versions/1/infer",
        "/openai/v1/completions",
        "/openai/v1/models",
        "/openai/v1/models/chat",
        "/v1/models",
        "/v2",
        "/v2/models",
        "/v2/models/text",
        "/v2/models/text/ready",
        "/v2/health/ready",
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/docs",
        "/openapi.json",
        "/v2/repository/index",
        "/v2/repository/models/text/load",
        "/v2/repository/models/text/unload",
        "*",
        "//",
        "/%",
        "/pilotlight/v1/explain/x",
        "/pilotlight/v1/idle-memory",
        "/v1/models/text:explain",
        "http://other/v1/models/text:predict",
        "/serving/default/text/v1/models/text:predict",
        "/serving/a/b/c",
        "/serving//",
        "/v1/models/../../metrics",
        "/profile/text",
        "?",
        "/?a=b#c",
        "/v1/models/text:predict?x=%00",
        "/v2/models/" + "m" * 5_000 + "/infer",
        "/" + "%41" * 300,
        "/pilotlight/v1/explain/" + "../" * 30,
        "/v1/models/default~text:predict",
    ]
)


@st.composite
def http(draw: DrawFn) -> HttpRequest:
    """Messages with odd framing, then damaged; any endpoint and method."""
    method = draw(
        st.sampled_from(
            [b"POST", b"GET", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE", b"PATCH"]
        )
        | st.sampled_from([b"CONNECT", b"PRI", b"post", b"", b"\x16\x03\x01", b"G" * 100])
    )
    version = draw(st.sampled_from([b"1.1", b"1.1", b"1.1", b"1.0", b"2.0", b"9.9", b"", b"1.1 x"]))
    path = draw(_PATHS).encode()
    lines = [b"%b %b HTTP/%b" % (method, path, version)]
    if draw(st.integers(0, 9)):
        lines.append(b"Host: localhost")
    lines += [b"%b: %b" % header for header in draw(HEADERS)]
    content = b"\r\n".join(lines) + b"\r\n" + draw(st.sampled_from(_FRAMINGS))
    if draw(st.integers(0, 3)) == 0:
        content *= draw(st.sampled_from([2, 5]))
    content = draw(damaged(st.just(content)))
    return HttpRequest(content, is_whole=False, to_pod=draw(st.integers(0, 3)) == 0)


@st.composite
def endpoints(draw: DrawFn) -> HttpRequest:
    """Well-formed requests to any endpoint, with odd names, methods, headers and bodies."""
    method = draw(st.sampled_from([b"GET", b"POST", b"POST", b"HEAD", b"PUT", b"DELETE"]))
    name = draw(NAMES | st.sampled_from(ODD_TEXTS).filter(lambda text: len(text) < 1_000))
    form = draw(
        st.sampled_from(
            [
                "/v1/models/{}",
                "/v2/models/{}",
                "/v2/models/{}/ready",
                "/v2/models/{}/versions/{}",
                "/openai/v1/models/{}",
                "/pilotlight/v1/explain/{}",
                "/serving/{}/{}/v1/models/{}",
                "/serving/{}/{}/v2/models/{}/infer",
                "/v2/repository/models/{}/load",
                "/v1/models/{}:explain",
                "/v1/models/{}:predict",
                "/v2/repository/index",
                "/{}",
            ]
        )
    )
    path = form.replace("{}", name).translate({c: f"%{c:02x}" for c in (*range(33), 127)})
    headers = draw(HEADERS)
    body = json_bytes(draw(mutated(st.sampled_from([{}, {"ready": True}]), ("parameters", "tier"))))
    is_whole = is_plain(headers) and method != b"HEAD"
    # Pods trust who reaches them with loads and unloads, which would disturb the other requests.
    to_pod = draw(st.integers(0, 3)) == 0 and "repository" not in path
    return HttpRequest(with_head(method, path, body, headers), is_whole, to_pod)
