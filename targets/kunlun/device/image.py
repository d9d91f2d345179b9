"""What `load_binary` takes: a vendor binary as it is, or an emulated kernel with its header."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

from ....errors import ArtifactError

MAGIC = b"SGLKXPU1"
VERSION = 1
"""`TC_EMULATION_VERSION` of the kernels' ABI."""
_HEAD = struct.Struct("<8sQQ")
_FIELDS = (
    "symbol", "engine", "kinds", "param_bytes", "lm_bytes", "sm_bytes", "uni_sram_bytes", "broken",
    "digest",
)  # fmt: skip


def kernel_image(symbol: str, meta: Mapping[str, object], data: bytes | memoryview) -> bytes:
    """The bytes to load; `meta` and `data` are a kernel's in the pack."""
    kind = meta.get("kind")
    if kind == "xpubin":
        return bytes(data)
    if kind != "emulated":
        raise ArtifactError(
            f"kernel {symbol}: expected an xpubin or an emulated kernel, got {kind}"
            " (finish the artifact with the vendor's toolchain: sglk finish)"
        )
    missing = [name for name in _FIELDS if name not in meta]
    if missing:
        raise ArtifactError(f"kernel {symbol}: its header lacks {missing}")
    header = {"version": VERSION} | {name: meta[name] for name in _FIELDS}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_HEAD.size + len(text)) % 64)
    return _HEAD.pack(MAGIC, len(text), len(data)) + text + bytes(data)
