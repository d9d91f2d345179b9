"""Kernel packs: what is written is read back, aligned, once per content; damage is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from sglk.errors import ArtifactError
from sglk.targets.artifact.kernel_pack import ALIGNMENT, PackedKernel, read_pack, write_pack

KERNELS = {
    "gemv": PackedKernel({"num_warps": 8, "params": ["*bf16", "i32"]}, b"\x7fELF" + bytes(100)),
    "norm": PackedKernel({"num_warps": 4, "params": []}, b"\x7fELF" + bytes(100)),
    "copy": PackedKernel({"kind": "ptx"}, b".version 8.8"),
}


def test_a_pack_reads_back_and_keeps_equal_code_once() -> None:
    pack = write_pack(KERNELS)
    read = read_pack(memoryview(pack))
    assert {name: (dict(k.meta), bytes(k.data)) for name, k in read.items()} == {
        name: (dict(k.meta), bytes(k.data)) for name, k in KERNELS.items()
    }
    assert pack.count(b"\x7fELF") == 1
    assert pack.find(b"\x7fELF") % ALIGNMENT == pack.find(b".version") % ALIGNMENT == 0


def test_order_does_not_matter_and_an_empty_pack_is_one() -> None:
    assert write_pack(dict(reversed(KERNELS.items()))) == write_pack(KERNELS)
    assert read_pack(write_pack({})) == {}


def head(pack: bytes, version: int | None = None, length: int | None = None) -> bytes:
    magic, old_version, old_length = struct.unpack_from("<8sQQ", pack)
    words = (version if version is not None else old_version, old_length)
    return struct.pack("<8sQQ", magic, words[0], length or words[1]) + pack[24:]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda pack: b"PK\x03\x04" + pack, "expected a kernel pack, got"),
        (lambda pack: pack[:10], "expected a kernel pack, got"),
        (lambda pack: head(pack, version=2), "expected version 1, got 2"),
        (lambda pack: head(pack, length=1 << 40), "expected an index within"),
        (lambda pack: pack[:-64], "expected code within"),
        (lambda pack: pack.replace(b'"bytes":12', b'"bytes":-1'), "expected a whole number"),
        (lambda pack: pack.replace(b'"meta":{', b'"meta":[', 1), "expected JSON"),
    ],
)
def test_damage_is_refused(damage: Callable[[bytes], bytes], sentence: str) -> None:
    with pytest.raises(ArtifactError, match=sentence):
        read_pack(damage(write_pack(KERNELS)), "kernels/sm_90.pack")
