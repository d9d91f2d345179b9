"""One line of JSON per request, in a folder if one is named; never a prompt, an answer or a key."""

from __future__ import annotations

import json
import logging
import logging.handlers
import time
from pathlib import Path
from typing import Any

from ...errors import SglkError

FILE = "requests.jsonl"
MAX_BYTES = 64 * 2**20
KEPT = 8


class RequestLog:
    """``requests.jsonl`` in a folder: 64 MiB a file, the last eight kept."""

    def __init__(self, folder: str | None = None) -> None:
        self._logger: logging.Logger | None = None
        self._handler: logging.Handler | None = None
        if folder is None:
            return
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(
                Path(folder) / FILE, maxBytes=MAX_BYTES, backupCount=KEPT, encoding="utf-8"
            )
        except OSError as error:
            raise SglkError(
                f"--log-dir: expected a folder to write to, got {folder} ({error.strerror})"
            ) from error
        handler.setFormatter(logging.Formatter("%(message)s"))
        self._handler = handler
        self._logger = logging.Logger("sglk.requests", logging.INFO)
        self._logger.addHandler(handler)

    def write(self, **fields: Any) -> None:
        """Add a line with the time and these fields."""
        if self._logger is not None:
            record = {"time": round(time.time(), 3), **fields}
            self._logger.info("%s", json.dumps(record, ensure_ascii=True))

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()
