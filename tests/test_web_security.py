"""Host, origin, token, size and time, as a server that runs enforces them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.web_servers import PATIENCE_SECONDS, PICTURE, RunningServer, close_code, running, until

from websockets.exceptions import InvalidStatus  # isort: skip

TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with running(token=TOKEN, host="0.0.0.0", names=("cams.example",)) as server:
        yield server


def test_another_host(server: RunningServer) -> None:
    for path in ("/", "/healthz", "/api/streams", "/static/js/main.js", "/metrics"):
        answer = server.http.get(path, headers={"host": "evil.example"})
        assert answer.status_code == 403
        assert "error" in answer.json()
    assert server.http.get("/healthz", headers={"host": f"localhost:{server.port}"}).status_code == 200
    with pytest.raises(InvalidStatus), server.socket("/api/events", additional_headers={"Host": "evil.example"}):
        pass


def test_two_hosts_or_none(server: RunningServer) -> None:
    for lines in ("", "Host: localhost\r\nHost: evil.example\r\n"):
        with server.tcp() as client:
            client.sendall(f"GET /api/streams HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
            assert client.recv(4096).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", ""])
def test_another_origin_changes_nothing(server: RunningServer, origin: str) -> None:
    for method, path in (("POST", "/api/streams"), ("DELETE", "/api/streams/s1"), ("OPTIONS", "/api/streams")):
        answer = server.http.request(method, path, headers={"origin": origin}, json={"source": PICTURE})
        assert answer.status_code == 403
    assert not server.serving.streams.runners


def test_the_own_origin_may_and_another_opens_no_socket(server: RunningServer) -> None:
    assert server.http.delete("/api/streams/nothing", headers={"origin": server.address}).status_code == 404
    with server.socket("/api/events", origin=server.address) as client:
        assert "streams" in str(client.recv(timeout=PATIENCE_SECONDS))
    for path in ("/api/events", "/api/streams/s1/video"):
        with server.socket(path, origin="http://evil.example") as client:
            assert close_code(client) == 4403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_embed_nothing(server: RunningServer, site: str) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
    assert server.http.get("/api/streams", headers=headers).status_code == 403
    assert server.http.get("/", headers=headers | {"sec-fetch-mode": "navigate"}).status_code == 200
    assert server.http.post("/api/streams/s1/retry", headers=headers).status_code == 403


def test_every_answer_bears_the_headers(server: RunningServer) -> None:
    for path in ("/", "/openapi.json", "/api/streams", "/api/nothing", "/static/js/main.js", "/healthz"):
        headers = server.http.get(path).headers
        assert {
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
        }.items() <= dict(headers).items()
        assert {"default-src 'self'", "frame-ancestors 'none'"} <= set(headers["content-security-policy"].split("; "))
        assert "camera=(self)" in headers["permissions-policy"]
        assert not {"access-control-allow-origin", "server"} & set(headers)
    assert server.http.get("/api/streams").headers["cache-control"] == "no-store"
    assert server.http.get("/static/js/main.js").headers["cache-control"] == "no-cache"


def test_without_a_token_nothing_but_health(guarded: RunningServer) -> None:
    assert guarded.http.get("/healthz").status_code == 200
    for path in ("/api/streams", "/metrics", "/openapi.json", "/static/js/main.js", "/api/nothing"):
        answer = guarded.http.get(path)
        assert answer.status_code == 401
        assert "Bearer" in answer.json()["remedy"]
    page = guarded.http.get("/")
    assert page.status_code == 401
    assert "<form" in page.text
    for path in ("/api/events", "/api/streams/s1/video"):
        with guarded.socket(path) as client:
            assert close_code(client) == 4401


@pytest.mark.parametrize("header", [f"Bearer {TOKEN}x", "Bearer", f"Basic {TOKEN}", TOKEN, "Bearer ü"])
def test_a_wrong_token(guarded: RunningServer, header: str) -> None:
    sent = {"authorization": header.encode("latin-1")}
    assert guarded.http.get("/api/streams", headers=sent).status_code == 401
    assert guarded.http.get("/?token=wrong-token").status_code == 401
    cookie = {"cookie": f"{guarded.serving.access.cookie_name}={TOKEN}"}
    assert guarded.http.get("/api/streams", headers=cookie).status_code == 401
    assert guarded.http.get("/api/streams", headers={"cookie": "a=b; \x7f=;"}).status_code == 401


def test_programs_send_the_token_and_host_and_origin_are_checked_all_the_same(guarded: RunningServer) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.http.get("/api/streams", headers=headers).status_code == 200
    with guarded.socket("/api/events", additional_headers=headers) as client:
        assert "streams" in str(client.recv(timeout=PATIENCE_SECONDS))
    assert guarded.http.get("/api/streams", headers=headers | {"host": "cams.example"}).status_code == 200
    assert guarded.http.get("/api/streams", headers=headers | {"host": "evil.example"}).status_code == 403
    answer = guarded.http.post("/api/streams", headers=headers | {"origin": "http://evil.example"}, json={})
    assert answer.status_code == 403


def test_a_browser_keeps_the_token_in_a_cookie(guarded: RunningServer) -> None:
    with httpx.Client(base_url=guarded.address, timeout=PATIENCE_SECONDS) as browser:
        answer = browser.get(f"/?token={TOKEN}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert browser.get("/").status_code == 200
        assert browser.get("/api/streams").status_code == 200
        pair = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    with guarded.socket("/api/events", additional_headers={"Cookie": pair}) as client:
        assert "streams" in str(client.recv(timeout=PATIENCE_SECONDS))


@pytest.mark.parametrize("other", ['seen={"a":1}', "flag", "a b=1", "word=ü", 'open="no end', "=nothing", "x=1,2"])
def test_cookies_of_other_servers_do_not_hide_the_own(guarded: RunningServer, other: str) -> None:
    access = guarded.serving.access
    for pair, status in ((access.cookie_value, 200), (access.cookie_value[:-1], 401)):
        cookie = f"{other}; {access.cookie_name}={pair}; last"
        answer = guarded.http.get("/api/streams", headers={"cookie": cookie.encode("latin-1")})
        assert answer.status_code == status


def _post(client: socket.socket, length: int) -> bytes:
    """The status that follows the beginning of a body of so many bytes."""
    head = "POST /api/streams HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {length}\r\n\r\n{{".encode())
    return client.recv(4096).split()[1]


def test_a_large_body_is_refused_before_it_is_read(server: RunningServer) -> None:
    with server.tcp() as client:
        assert _post(client, 1_000_000_000_000) == b"413"


@pytest.mark.parametrize(
    ("method", "path", "limit"), [("POST", "/api/streams", 1_000_000), ("PUT", "/api/streams/s1/example", 10_000_000)]
)
def test_a_body_that_grows_too_large_is_refused(server: RunningServer, method: str, path: str, limit: int) -> None:
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(400):
            sent += 65_536
            yield b" " * 65_536

    try:
        answer = server.http.request(method, path, content=body(), headers={"content-type": "application/json"})
    except httpx.TransportError:
        # The server has hung up while the client was still writing.
        assert sent < 400 * 65_536
    else:
        assert answer.status_code in (413, 404)
    assert server.http.get("/healthz").status_code == 200
    assert sent > limit or sent < 400 * 65_536


def test_who_never_finishes_a_request_is_cut(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from arr_stream.web import security
    from arr_stream.web import server as connection

    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(security, "BODY_SECONDS", 0.3)
    with server.tcp() as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: lo")
        with pytest.raises(ConnectionError):
            assert client.recv(1) == b""
            raise ConnectionResetError
    with server.tcp() as client:
        assert _post(client, 9) == b"408"


def _taken_from(client: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    taken = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65_536):
            taken += piece
    return taken


def test_connections_that_say_nothing_take_no_more_than_their_share(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arr_stream.web import server as connection

    monkeypatch.setattr(connection, "MOST_OPEN", 8)
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 10 * PATIENCE_SECONDS)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(server.tcp()) for _ in range(30)]
        assert _taken_from(silent[-1]) == b""
    monkeypatch.undo()

    def answers() -> bool:
        with server.tcp() as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return b" 200 " in _taken_from(client)

    until(answers)
