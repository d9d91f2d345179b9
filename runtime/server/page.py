"""The page at ``/``: files of this package, nothing from elsewhere, so it works offline."""

from __future__ import annotations

import functools
from importlib.resources import files

from .wire import Client

FILES = (
    ("/", "index.html"),
    ("/page/page.css", "page.css"),
    ("/page/chart.js", "chart.js"),
    ("/page/metrics.js", "metrics.js"),
    ("/page/chat.js", "chat.js"),
    ("/page/page.js", "page.js"),
)
_TYPES = {"html": b"text/html", "css": b"text/css", "js": b"text/javascript"}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def send(name: str, client: Client) -> None:
    """GET one of the files."""
    kind = _TYPES[name.rpartition(".")[2]] + b"; charset=utf-8"
    headers = [
        (b"content-type", kind),
        (b"content-security-policy", _POLICY),
        (b"cache-control", b"no-cache"),
    ]
    await client.reply(200, content(name), headers)


@functools.cache
def content(name: str) -> bytes:
    """A file as it lies in the package."""
    return (files(__package__) / "page" / name).read_bytes()
