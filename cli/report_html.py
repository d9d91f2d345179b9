"""Pieces of HTML that the lowering report is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def time_text(seconds: float) -> str:
    """A duration for people.

    >>> time_text(0.0000123), time_text(0.25)
    ('12.3 µs', '250 ms')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


SIZES = ("BLOCK_M", "BLOCK_N", "BLOCK_K")


def tile_text(tiles: Iterable[Mapping[str, int]]) -> str:
    """M, N and K of tiles that have them, else all sizes; equal tiles once.

    >>> tile_text([{"BLOCK_N": 128, "BLOCK_M": 64, "BLOCK_D": 8}, {"BLOCK": 512}])
    '64 × 128, 512'
    """
    texts = []
    for tile in tiles:
        known = [tile[name] for name in SIZES if name in tile]
        texts.append(" × ".join(map(str, known or tile.values())))
    return ", ".join(dict.fromkeys(texts))


def bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def cell(text: object, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f"<td{mark}>{text}</td>"


def table(heads: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    top = "".join(f"<th>{head}</th>" for head in heads)
    body = "\n".join(rows)
    mark = f' class="{kind}"' if kind else ""
    inside = f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    return f"<div class=scroll><table{mark}>\n{inside}</table></div>\n"


def badge(text: str, kind: str) -> str:
    return f'<span class="badge {kind}">{escape(text)}</span>'


def code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def row(*cells: str) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def bar(share: float) -> str:
    return f'<span class="bar"><i style="width:{max(1, round(100 * share))}%"></i></span>'
