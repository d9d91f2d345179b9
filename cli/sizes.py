"""Sizes and numbers as people type them."""

from __future__ import annotations

import re

from ..errors import SglkError

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_size(option: str, text: str) -> int:
    """Bytes: a number with an optional unit, every unit a power of 1024.

    >>> parse_size("--memory", "2GiB"), parse_size("--memory", "1.5 k")
    (2147483648, 1536)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise SglkError(f"{option}: expected a size such as 32GiB or 512MiB, got {text!r:.40}")
    return int(float(found[1]) * _UNITS[found[2]])


def parse_number(option: str, text: str, least: int = 1) -> int:
    """A whole number that 32 bits hold.

    >>> parse_number("--rows", " 256")
    256
    """
    if not text.strip().isdecimal() or not least <= int(text) < 2**31:
        raise SglkError(f"{option}: expected a whole number >= {least}, got {text!r}")
    return int(text)
