"""What `sglk-compile` takes for ONNX models alone: ``--const`` and ``--dim``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SglkError


def add_onnx_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--const",
        metavar="NAME=VALUES",
        action="append",
        default=[],
        help="ONNX: compile for these numbers of an input (3,4 or a .npy file) that decide shapes",
    )
    parser.add_argument(
        "--dim",
        metavar="NAME=SIZE",
        action="append",
        default=[],
        help="ONNX: fix a named size (others stay free)",
    )


def onnx_options(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `driver.compile`; empty for other models."""
    if not options.const and not options.dim:
        return {}
    const = {name: _numbers(name, text) for name, text in _pairs("--const", options.const)}
    return {"const": const, "sizes": dict(_sizes(options.dim))}


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [tuple(text.rpartition("=")[::2]) for text in texts]
    for (name, value), text in zip(pairs, texts, strict=True):
        if not name or not value:
            raise SglkError(f"{option}: expected NAME=VALUE, got {text!r}")
    return [(name, value) for name, value in pairs]


def _numbers(name: str, text: str) -> Any:
    """A number, a row of them, or the array of a file."""
    if text.endswith(".npy"):
        path = Path(text)
        if not path.is_file():
            raise SglkError(f"--const {name}: expected a .npy file, got no {path}")
        return np.load(path, allow_pickle=False)
    try:
        values = [float(part) if _is_float(part) else int(part) for part in text.split(",")]
    except ValueError as error:
        raise SglkError(f"--const {name}: expected numbers like 3,4, got {text!r}") from error
    return np.array(values if "," in text else values[0])


def _is_float(text: str) -> bool:
    return any(mark in text.lower() for mark in (".", "e", "inf", "nan"))


def _sizes(texts: Sequence[str]) -> list[tuple[str, int]]:
    pairs = _pairs("--dim", texts)
    for name, text in pairs:
        if not text.isdecimal() or not int(text):
            raise SglkError(f"--dim {name}: expected a size like 4, got {text!r}")
    return [(name, int(text)) for name, text in pairs]
