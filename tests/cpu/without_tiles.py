"""Loads an artifact while Linux refuses the tile registers; prints which instruction sets count.

``without_tiles.py ARTIFACT``; exit status 77 where a process cannot be kept from asking.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path

LOAD, IS_EQUAL, ANSWER = 0x20, 0x15, 0x06
ARCH_PRCTL, REQUEST_PERMISSION = 158, 0x1023
REFUSED, ALLOWED = 0x00050001, 0x7FFF0000  # EPERM
FILTER = (
    (LOAD, 0, 0, 0),  # the number of the system call
    (IS_EQUAL, 0, 3, ARCH_PRCTL),
    (LOAD, 0, 0, 16),  # its first argument
    (IS_EQUAL, 0, 1, REQUEST_PERMISSION),
    (ANSWER, 0, 0, REFUSED),
    (ANSWER, 0, 0, ALLOWED),
)
SET_SECCOMP, MODE_FILTER, SET_NO_NEW_PRIVILEGES = 22, 2, 38


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_tiles() -> bool:
    """From here on the process and its threads are refused; False where there is no seccomp."""
    code = b"".join(struct.pack("HBBI", *line) for line in FILTER)
    system = ctypes.CDLL(None)
    system.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    program = Program(len(FILTER), code)
    return bool(system.prctl(SET_SECCOMP, MODE_FILTER, ctypes.byref(program)) == 0)


def main(path: Path) -> int:
    if not refuse_tiles():
        return 77
    from sglk.targets.artifact import Artifact
    from sglk.targets.cpu.device import CpuDevice
    from sglk.targets.cpu.device.isa import this_machine
    from sglk.targets.tilec.isa import native_isa

    with Artifact.open(path) as artifact:
        loaded = CpuDevice().load(artifact, num_pages=8, max_tokens=4).isa
    print(json.dumps([this_machine().best, native_isa().name, loaded]))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
