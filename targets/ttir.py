"""Kernels -> TTIR through a content-addressed cache, for every target that builds from TTIR."""

from __future__ import annotations

import hashlib
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

import triton

from ..errors import LoweringError
from .kernel import Kernel
from .kernels.ttir import to_ttir
from .tilec import KernelCache


def kernel_ttir(kernel: Kernel, kernel_cache: KernelCache) -> str:
    """The TTIR text of a Triton kernel, made once for each source, signature and constants."""
    digest = hashlib.sha256(f"{kernel.key} {sources_hash()} {triton.__version__}".encode())
    key = f"{digest.hexdigest()}.ttir"
    path = kernel_cache.find(key)
    if path is None:
        text = to_ttir(kernel.load(), dict(kernel.signature), dict(kernel.constants))
        path = kernel_cache.put(key, partial(_write_text, text))
    return path.read_text()


def write_texts(folder: Path, texts: dict[str, str]) -> None:
    """Files for ``SGLK_DUMP``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _write_text(text, folder / name)
    except OSError as error:
        raise LoweringError(f"SGLK_DUMP: cannot write into {folder}: {error}") from error


def _write_text(text: str, path: Path) -> None:
    path.write_text(text)


@cache
def sources_hash() -> str:
    """All kernel sources: a kernel may call functions of any of them."""
    digest = hashlib.sha256()
    folder = files(f"{__package__}.kernels")
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        if path.name.endswith(".py"):
            digest.update(path.read_bytes())
    return digest.hexdigest()
