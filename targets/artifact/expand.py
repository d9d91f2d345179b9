"""Weights kept in blocks as model files store them, made bf16 by the device when it loads them.

A weight of the manifest with ``expand`` has the blob of its blocks; its dtype, shape, layout and
bytes are those it has on the device. Parts lie there one after the other, each a run of blocks of
one type (`BLOCKS`); in the blob each starts at its offset. A device makes round-to-nearest bf16 of
exactly the values that `ir.blocks.BlockArray.dequantize` gives.

>>> Expand((Part("q4_1", 0, 10), Part("q8_0", 256, 2))).elements
384
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ArtifactError
from .schema import as_int, as_list, as_name, as_record

FEATURE = "expanded-blocks"
"""What an artifact with such weights names in its manifest's ``features``."""
DTYPE, ITEM_BYTES = "bf16", 2
"""What all blocks become."""
ALIGNMENT = 64
"""Bytes; every part starts at a multiple in its blob."""
BLOCKS = {
    "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34),
    "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
}  # fmt: skip
"""Elements and bytes of one block by type: the facts of `ir.blocks` that loading needs."""


@dataclass(frozen=True)
class Part:
    """``blocks`` blocks of one type from ``offset`` bytes of the blob on."""

    type: str
    offset: int
    blocks: int

    @property
    def elements(self) -> int:
        return self.blocks * BLOCKS[self.type][0]

    @property
    def num_bytes(self) -> int:
        """As stored."""
        return self.blocks * BLOCKS[self.type][1]


@dataclass(frozen=True)
class Expand:
    """How one weight is made of its blob."""

    parts: tuple[Part, ...]

    @property
    def elements(self) -> int:
        return sum(part.elements for part in self.parts)

    def to_json(self) -> dict[str, object]:
        return {"parts": [vars(part) for part in self.parts]}

    @staticmethod
    def from_json(where: str, value: object) -> Expand:
        """Checked parts, or `ArtifactError`."""
        parts = as_list(f"{where}: parts", as_record(where, value, ["parts"], None)["parts"])
        return Expand(tuple(_part(f"{where}: part {i}", part) for i, part in enumerate(parts)))


def _part(where: str, value: object) -> Part:
    record = as_record(where, value, ["type", "offset", "blocks"], None)
    kind = as_name(f"{where}: type", record["type"])
    if kind not in BLOCKS:
        raise ArtifactError(f"{where}: expected one of {', '.join(BLOCKS)}, got {kind!r}")
    offset = as_int(f"{where}: offset", record["offset"])
    if offset % ALIGNMENT:
        raise ArtifactError(f"{where}: expected a multiple of {ALIGNMENT}, got {offset}")
    return Part(kind, offset, as_int(f"{where}: blocks", record["blocks"]))


def check_expand(where: str, value: object, dtype: str, size: int, blob_bytes: int) -> None:
    """Refuse parts that lie outside the blob or do not add up to the weight."""
    expand = Expand.from_json(where, value)
    if dtype != DTYPE or expand.elements * ITEM_BYTES != size:
        raise ArtifactError(
            f"{where}: expected {expand.elements} elements of {DTYPE}, got {size} bytes of {dtype}"
        )
    for part in expand.parts:
        if part.offset + part.num_bytes > blob_bytes:
            raise ArtifactError(
                f"{where}: expected blocks within {blob_bytes} bytes,"
                f" got {part.num_bytes} from {part.offset} on"
            )
