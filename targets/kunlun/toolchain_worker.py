"""Compiles Triton kernels for Kunlun in the Python environment that has the vendor's Triton.

Runs there as a file, by itself: the standard library and Triton alone, Python 3.8 or newer. Reads
one JSON object a line from standard input and answers each with one line on standard output;
whatever compilers print goes to standard error. `toolchain.py` is the other side.

    {"kind": "hello", "protocol": 1, "backend": "xpu"}      -> versions
    {"kind": "modules", "modules": {name: source}}          -> ok
    {"kind": "compile", "symbol": ..., "module": ..., ...}  -> the binary, or why there is none
    {"kind": "end"}                                         -> nothing; the process ends
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import inspect
import json
import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

PROTOCOL = 1
PACKAGE = "sglk_kernels"
"""Name under which the kernel modules are imported: they import each other relatively."""


def hello(request: dict[str, Any]) -> dict[str, Any]:
    """Versions, and whether this Triton has the back end that is asked for."""
    import triton
    from triton.backends import backends

    return {
        "kind": "hello",
        "protocol": PROTOCOL,
        "python": platform.python_version(),
        "triton": triton.__version__,
        "backends": sorted(backends),
        "flagtree": _version_of("flagtree"),
    }


def _version_of(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


class Worker:
    """Kernel modules in a folder of their own, and compiles of their functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sys.path.insert(0, str(folder))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        kind = request.get("kind")
        if kind == "hello":
            return hello(request)
        if kind == "modules":
            return self.modules(request["modules"])
        if kind == "compile":
            return self.compile(request)
        return {"kind": "failed", "symbol": "", "error": f"unknown request {kind!r}"}

    def modules(self, sources: dict[str, str]) -> dict[str, Any]:
        """Triton reads a kernel's source from its file."""
        package = self.folder / PACKAGE
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("")
        for name, text in sources.items():
            (package / f"{name}.py").write_text(text)
        return {"kind": "ok"}

    def compile(self, request: dict[str, Any]) -> dict[str, Any]:
        symbol = request["symbol"]
        try:
            data, metadata = self._binary(request)
        except Exception as error:  # noqa: BLE001  (a compiler may raise anything)
            traceback.print_exc(file=sys.stderr)
            text = f"{type(error).__name__}: {error}"
            return {"kind": "failed", "symbol": symbol, "error": text[:2000]}
        return {
            "kind": "compiled",
            "symbol": symbol,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "data": base64.b64encode(data).decode(),
            "metadata": metadata,
        }

    def _binary(self, request: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import compile as compile_kernel

        module = importlib.import_module(f"{PACKAGE}.{request['module']}")
        function = getattr(module, request["function"])
        target = GPUTarget(request["backend"], request["arch"], request["warp_size"])
        source = _source(function, request["signature"], request["constants"])
        made = compile_kernel(source, target=target, options=dict(request["options"]))
        return bytes(made.asm[request["binary"]]), _plain(made.metadata)


def _source(function: Any, signature: dict[str, str], constants: dict[str, Any]) -> Any:
    """An `ASTSource`; up to 3.2 constants have no place in the signature, later they must."""
    from triton.compiler import ASTSource

    names = list(function.arg_names)
    if "constexprs" in inspect.signature(ASTSource.__init__).parameters:
        full = {n: "constexpr" if n in constants else signature[n] for n in names}
        return ASTSource(function, full, constexprs=dict(constants))
    present = {name: signature[name] for name in names if name not in constants}
    return ASTSource(function, present, constants=dict(constants))


def _plain(metadata: Any) -> dict[str, Any]:
    """What of the metadata JSON can say."""
    fields = metadata if isinstance(metadata, dict) else metadata._asdict()
    return {k: v for k, v in fields.items() if isinstance(v, (str, int, float, bool, type(None)))}


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # compilers and libraries print where they like
    with tempfile.TemporaryDirectory(prefix="sglk-kernels-") as folder:
        worker = Worker(Path(folder))
        for line in sys.stdin:
            request = json.loads(line)
            if request.get("kind") == "end":
                return 0
            try:
                reply = worker.answer(request)
            except ImportError as error:
                reply = {"kind": "failed", "symbol": "", "error": f"ImportError: {error}"}
            answers.write(json.dumps(reply) + "\n")
            answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
