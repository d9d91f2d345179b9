"""What a client is told when a request is refused: OpenAI's error shape, one class for all."""

from __future__ import annotations

import re
from typing import Any

from ...errors import RequestError

_FIELD = re.compile(r"([a-z_]+(?:\[[^\]]*\])?(?:\.[a-z_]+)*): ")
_NEVER_FITS = re.compile(r"request \S+: ")
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}


class Problem(RequestError):
    """A refusal with its HTTP status. ``param`` is the offending field of the request.

    >>> Problem("n: expected at least 1, got 0", param="n").body()["error"]["type"]
    'invalid_request_error'
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        reason: str = "invalid",
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.retry_after = retry_after
        self.allow: str | None = None
        """Methods that the path does take."""
        self.reason = reason
        """A word for the metric of refusals."""

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": str(self),
                "type": TYPES[self.status],
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Header lines beside the body."""
        found = []
        if self.retry_after is not None:
            found.append((b"retry-after", str(self.retry_after).encode()))
        if self.allow is not None:
            found.append((b"allow", self.allow.encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found


def as_problem(error: RequestError, prompt_field: str) -> Problem:
    """A refusal of the engine as the client's: the field is what stands before its first colon."""
    if isinstance(error, Problem):
        return error
    text = str(error)
    never_fits = _NEVER_FITS.match(text)
    if never_fits:
        text = f"{prompt_field}: {text[never_fits.end() :]}"
    too_long = never_fits is not None or "context of" in text
    code = "context_length_exceeded" if too_long else "invalid_value"
    if text.startswith("prompt: "):
        text = f"{prompt_field}: {text.removeprefix('prompt: ')}"
    elif text.startswith("chat template: "):
        text = f"messages: {text}"
    field = _FIELD.match(text)
    reason = "too_long" if too_long else "invalid"
    return Problem(text, param=field[1] if field else None, code=code, reason=reason)
