"""API keys: read from a file or an environment variable, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...errors import SglkError

MIN_KEY_CHARS = 8


class Keys:
    """A set of keys; only their digests are kept.

    >>> keys = Keys(["correct horse battery"])
    >>> keys.accepts("correct horse battery"), keys.accepts("wrong"), bool(Keys([]))
    (True, False, False)
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accepts(self, key: str) -> bool:
        """Whether it is one of them; the time taken does not tell how close it came."""
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)

    @classmethod
    def read(
        cls,
        option: str,
        file: str | None,
        variable: str | None,
        environ: Mapping[str, str] = os.environ,
    ) -> Keys:
        """Keys of a file (one a line, # comments) or of a variable (separated by commas)."""
        if file is not None and variable is not None:
            raise SglkError(f"{option}: expected either a file or a variable, got both")
        if variable is not None:
            if not environ.get(variable):
                raise SglkError(f"{option}-env: expected a key in ${variable}, got none (set it)")
            return cls(_checked(f"{option}-env", environ[variable].split(",")))
        if file is None:
            return cls([])
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        return cls(_checked(f"{option}-file {file}", (line.split("#")[0] for line in lines)))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _checked(where: str, texts: Iterable[str]) -> list[str]:
    keys = [text.strip() for text in texts if text.strip()]
    if not keys:
        raise SglkError(f"{where}: expected at least one key, got none")
    for key in keys:
        if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
            raise SglkError(
                f"{where}: expected keys of at least {MIN_KEY_CHARS} printable ASCII characters "
                f"without spaces, got one of {len(key)} characters"
            )
    return keys
