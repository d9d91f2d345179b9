"""Keys, what only administrators may do, tenants, and what is written down."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sglk.errors import SglkError
from sglk.runtime.server.keys import Keys


def test_keys_open_what_they_should(make_server: Any) -> None:
    server = make_server(keys=["user-key-1", "user-key-2"], admin_keys=["admin-key-1"])

    def status(method: str, path: str, key: str | None) -> int:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        code: int = server.http.request(method, path, headers=headers).status_code
        return code

    assert [status("GET", "/v1/models", key) for key in (None, "wrong", "user-key-2")] == [
        401, 401, 200,
    ]  # fmt: skip
    others = ("admin-key-1", "user-key", "user-key-11")
    assert [status("GET", "/v1/models", key) for key in others] == [200, 401, 401]
    for path in ("/health/live", "/health/ready", "/metrics", "/", "/openapi.json"):
        assert status("GET", path, None) == 200
    keys = (None, "user-key-1", "admin-key-1")
    assert [status("POST", "/flush_cache", key) for key in keys] == [401, 403, 200]
    assert [status("GET", "/admin/requests", key) for key in keys] == [401, 403, 200]
    reply = server.http.get("/v1/models")
    assert reply.json()["error"]["type"] == "authentication_error"
    assert reply.headers["www-authenticate"] == "Bearer"


def test_without_an_admin_key_nobody_is_one(server: Any) -> None:
    assert server.http.post("/flush_cache").status_code == 403


def test_an_admin_flushes_the_cache_and_drains(make_server: Any) -> None:
    server = make_server(admin_keys=["admin-key-1"])
    admin = {"authorization": "Bearer admin-key-1"}
    first = server.chat("a long enough question").json()["usage"]
    again = server.chat("a long enough question").json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] > 0
    assert server.http.post("/flush_cache", headers=admin).json()["flushed_pages"] > 0
    cold = server.chat("a long enough question").json()["usage"]
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0
    server.http.post("/admin/drain", headers=admin)
    assert server.chat().status_code == 503
    assert server.http.get("/health/ready").status_code == 503
    server.http.post("/admin/resume", headers=admin)
    assert server.chat().status_code == 200


def test_salts_keep_prefixes_apart(server: Any) -> None:
    text = "the same question for two tenants"
    ask = [server.chat(text, cache_salt=salt).json() for salt in ("a", "a", "b")]
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in ask]
    assert cached[0] == 0 and cached[1] > 0 and cached[2] == 0
    assert len({each["choices"][0]["message"]["content"] for each in ask}) == 1


def test_keys_are_read_from_file_or_variable(tmp_path: Any) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("# people\nfirst-key\n\nsecond-key  # hers\n")
    keys = Keys.read("--api-key", str(file), None)
    assert keys.accepts("first-key") and keys.accepts("second-key") and not keys.accepts("")
    assert Keys.read("--api-key", None, "K", {"K": "one-more-key,other-key"}).accepts("other-key")
    assert not Keys.read("--api-key", None, None)
    file.write_text("short\n")
    with pytest.raises(SglkError, match="at least 8 printable"):
        Keys.read("--api-key", str(file), None)
    with pytest.raises(SglkError, match=r"\$K, got none"):
        Keys.read("--api-key", None, "K", {})


def test_requests_are_logged_without_their_texts(make_server: Any, tmp_path: Any) -> None:
    server = make_server(log_folder=str(tmp_path / "logs"))
    server.chat("a secret question", seed=1)
    server.stop()
    (line,) = (tmp_path / "logs" / "requests.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["path"] == "/v1/chat/completions" and record["reasons"] == ["length"]
    assert record["answer_tokens"] == [8] and "secret" not in line
