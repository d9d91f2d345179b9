"""Byte layout of the zip records we write and accept: stored members, aligned data, zip64.

Field order and numbers follow PKWARE APPNOTE 6.3.10, sections 4.3.7 to 4.3.16 and 4.5.3. The
padding that aligns the data is an extra field with the id that Android's zipalign uses.
"""

from __future__ import annotations

import dataclasses
import struct

ALIGNMENT = 4096
"""Members' data starts at multiples of this, so that a weight can be mapped on its own pages."""
LOCAL = struct.Struct("<4sHHHHHIIIHH")
CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
END = struct.Struct("<4sHHHHIIH")
END64 = struct.Struct("<4sQHHIIQQQQ")
LOCATOR64 = struct.Struct("<4sIQI")
LOCAL_MAGIC, CENTRAL_MAGIC, END_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64_MAGIC, LOCATOR64_MAGIC = b"PK\x06\x06", b"PK\x06\x07"
MAX16, MAX32 = 0xFFFF, 0xFFFFFFFF
EXTRA = struct.Struct("<HH")
EXTRA_ZIP64, EXTRA_PADDING = 1, 0xD935
VERSION = 45
"""Lowest zip version that knows zip64; the one value we write and the highest we accept."""
# Members carry a fixed time, so that equal content gives equal bytes: 1980-01-01 00:00.
DOS_TIME, DOS_DATE = 0, (1 << 5) | 1
ZIP64_SIZES = EXTRA.size + 16


@dataclasses.dataclass(frozen=True)
class Member:
    """One stored member: where its local header and its data are."""

    name: str
    header_offset: int
    data_offset: int
    size: int
    crc: int


def data_offset_for(name: str, header_offset: int) -> int:
    """Aligned start of the data of a member whose local header is at `header_offset`."""
    shortest = header_offset + LOCAL.size + len(name) + ZIP64_SIZES + EXTRA.size
    return -(-shortest // ALIGNMENT) * ALIGNMENT


def local_header(member: Member) -> bytes:
    """Local header with extra fields that fill the room up to the data."""
    big = member.size >= MAX32
    size = MAX32 if big else member.size
    extra = (
        EXTRA.pack(EXTRA_ZIP64, 16) + struct.pack("<QQ", member.size, member.size) if big else b""
    )
    room = member.data_offset - member.header_offset - LOCAL.size - len(member.name)
    padding = room - len(extra) - EXTRA.size
    extra += EXTRA.pack(EXTRA_PADDING, padding) + bytes(padding)
    fixed = LOCAL.pack(
        LOCAL_MAGIC, VERSION, 0, 0, DOS_TIME, DOS_DATE,
        member.crc, size, size, len(member.name), len(extra),
    )  # fmt: skip
    return fixed + member.name.encode() + extra


def central_entry(member: Member) -> bytes:
    """Central directory entry; sizes and offset go to a zip64 field when either is large."""
    big = member.size >= MAX32 or member.header_offset >= MAX32
    size = MAX32 if big else member.size
    offset = MAX32 if big else member.header_offset
    wide = struct.pack("<QQQ", member.size, member.size, member.header_offset)
    extra = EXTRA.pack(EXTRA_ZIP64, len(wide)) + wide if big else b""
    fixed = CENTRAL.pack(
        CENTRAL_MAGIC, VERSION, VERSION, 0, 0, DOS_TIME, DOS_DATE,
        member.crc, size, size, len(member.name), len(extra), 0, 0, 0, 0, offset,
    )  # fmt: skip
    return fixed + member.name.encode() + extra


def end_records(count: int, start: int, size: int, comment: bytes) -> bytes:
    """End of central directory, with the zip64 pair before it when a number needs it."""
    records = b""
    if count >= MAX16 or start >= MAX32 or size >= MAX32:
        records = END64.pack(
            END64_MAGIC, END64.size - 12, VERSION, VERSION, 0, 0, count, count, size, start
        ) + LOCATOR64.pack(LOCATOR64_MAGIC, 0, start + size, 1)
    short = min(count, MAX16)
    end = END.pack(END_MAGIC, 0, 0, short, short, min(size, MAX32), min(start, MAX32), len(comment))
    return records + end + comment
