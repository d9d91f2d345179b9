"""Random numbers: Philox4x32-10.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

The one definition for host and devices. The number that decides a token is a function of

    key     = (seed low 32 bits, seed high 32 bits)
    counter = (position low, position high, request low, request high)

where ``position`` is the index of the token in its sequence (prompt included) and ``request``
tells apart samples of one prompt. The first two output words make a double in [0, 1):
``((w0 << 32 | w1) >> 11) * 2**-53``. Nothing depends on what else is in the batch.

NumPy's Philox is another generator (Philox4x64-10 with its own counter layout), so the ten rounds
are written out here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""32-bit words in 64-bit lanes, so that products do not overflow."""

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds on counters [4, n] under one key; the four output words [4, n].

    >>> words = philox4x32(np.zeros((4, 1), np.uint64), (0, 0))
    >>> " ".join(f"{int(word):08x}" for word in words[:, 0])
    '6627e8d5 e169c58d bc57ac4c 9b00dbd8'
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _M0, c2 * _M1
        c0 = (product1 >> _HALF) ^ c1 ^ np.uint64(k0)
        c2 = (product0 >> _HALF) ^ c3 ^ np.uint64(k1)
        c1, c3 = product1 & _MASK, product0 & _MASK
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


def uniforms(seed: int, request: int, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """The numbers in [0, 1) for these positions."""
    position = positions.astype(np.uint64)
    counter = np.empty((4, len(position)), dtype=np.uint64)
    counter[0], counter[1] = position & _MASK, position >> _HALF
    counter[2], counter[3] = request & 0xFFFFFFFF, request >> 32
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    bits = ((words[0] << _HALF) | words[1]) >> np.uint64(11)
    return np.asarray(bits * 2.0**-53, dtype=np.float64)


class UniformStream:
    """The numbers of one request, drawn a block of positions at a time to spare the overhead.

    >>> stream = UniformStream(seed=7, request=0)
    >>> stream.at(100) == uniforms(7, 0, np.array([100]))[0]
    np.True_
    """

    BLOCK = 64

    def __init__(self, seed: int, request: int) -> None:
        self._seed = seed
        self._request = request
        self._start = -1
        self._values = np.zeros(0)

    def at(self, position: int) -> float:
        start = position - position % self.BLOCK
        if start != self._start:
            block = np.arange(start, start + self.BLOCK, dtype=np.int64)
            self._start, self._values = start, uniforms(self._seed, self._request, block)
        return float(self._values[position - start])
