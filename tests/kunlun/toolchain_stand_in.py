"""Speaks the worker's protocol without a compiler, and goes wrong as its first argument says."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import sys
import time
from typing import Any

FAULT = sys.argv[1] if len(sys.argv) > 1 else "none"
HELLO: dict[str, object] = {
    "kind": "hello", "protocol": 1, "python": "3.10.12", "triton": "3.0.0", "flagtree": "0.3.1",
    "backends": ["xpu"],
}  # fmt: skip


def say(reply: object) -> None:
    print(json.dumps(reply), flush=True)


def compiled(request: dict[str, Any]) -> dict[str, Any]:
    data = f"binary of {request['module']}.{request['function']}".encode()
    return {
        "kind": "compiled",
        "symbol": request["symbol"],
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "data": base64.b64encode(data).decode(),
        "metadata": {
            "name": request["function"],
            "is_sdnn": bool(request["options"].get("is_sdnn")),
            "printf_buf_offset": 64,
            "shared": -1,
        },
    }


def hello() -> None:
    changes: dict[str, dict[str, object]] = {
        "old protocol": {"protocol": 0},
        "newer triton": {"triton": "3.9.0"},
        "odd triton": {"triton": "nightly"},
        "no xpu": {"backends": ["nvidia", "amd"]},
    }
    say({**HELLO, **changes.get(FAULT, {})})


def kernel(request: dict[str, Any]) -> None:
    reply = compiled(request)
    if FAULT == "crash":
        print("LLVM ERROR: cannot select", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "exit":
        print("Traceback: no module xtdk", file=sys.stderr, flush=True)
        sys.exit(3)
    elif FAULT == "hang":
        time.sleep(60)
    elif FAULT == "garbage":
        print("warning: deprecated option", flush=True)
    elif FAULT == "a list":
        say([1, 2])
    elif FAULT == "half":
        sys.stdout.write(json.dumps(reply)[:100])
        sys.stdout.flush()
        sys.exit(0)
    elif FAULT == "refused":
        say({"kind": "failed", "symbol": request["symbol"], "error": "OutOfResources: uni_sram 2"})
    else:
        changes: dict[str, dict[str, object]] = {
            "another kernel": {"symbol": "other"},
            "no answer to it": {"kind": "ok"},
            "empty": {"data": "", "bytes": 0},
            "no base64": {"data": "!!"},
            "cut short": {"data": base64.b64encode(b"bin").decode()},
            "wrong hash": {"sha256": "0" * 64},
            "no metadata": {"metadata": None},
        }
        say({**reply, **changes.get(FAULT, {})})


if FAULT == "silent":
    sys.exit(1)
if FAULT == "deaf":
    time.sleep(60)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["kind"] == "end":
        break
    if asked["kind"] == "hello":
        hello()
    elif asked["kind"] == "modules":
        say({"kind": "ok"})
    else:
        kernel(asked)
