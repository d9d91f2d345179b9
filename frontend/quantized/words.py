"""Integers of 4 or 8 bits out of 32-bit words.

>>> unpack(np.array([[0x76543210]], np.int32), 4)
array([[0, 1, 2, 3, 4, 5, 6, 7]], dtype=uint8)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def unpack(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Along the last axis, the lowest bits of a word first."""
    little = np.ascontiguousarray(words).astype("<i4", copy=False)
    bytes_ = little.view(np.uint8)
    if bits == 8:
        return bytes_
    pairs = np.stack([bytes_ & np.uint8(15), bytes_ >> np.uint8(4)], axis=-1)
    return pairs.reshape(*words.shape[:-1], -1)


def interleaved(words: NDArray[Any]) -> NDArray[np.uint8]:
    """AWQ's order: the eight integers of a word are 0, 2, 4, 6, 1, 3, 5, 7 of their eight.

    >>> interleaved(np.array([[0x75316420]], np.int32))
    array([[0, 1, 2, 3, 4, 5, 6, 7]], dtype=uint8)
    """
    eights = unpack(words, 4).reshape(*words.shape, 8)
    return eights[..., [0, 4, 1, 5, 2, 6, 3, 7]].reshape(*words.shape[:-1], -1)


def width(words: int, bits: int) -> int:
    """Integers in so many words."""
    return words * (32 // bits)
