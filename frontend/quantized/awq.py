"""AWQ as AutoAWQ's ``gemm`` writes it (`quant_method: awq`).

A layer [N, K] is ``qweight`` i32 [K, N/8] and ``qzeros`` i32 [groups, N/8], integers of 4 bits
along N in the order of `words.interleaved`, and ``scales`` f16 [groups, N].
value[n, k] = (q[k, n] - zero[g, n]) * scale[g, n], g the group of k.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.forms import GroupForm
from ...ir.groups import GroupArray
from .layers import (
    Found,
    Layer,
    LayerError,
    Settings,
    Stored,
    check_matrix,
    group_size,
    need,
    prefixes,
    scale_type,
)
from .words import interleaved, width


def find(stored: Stored, settings: Settings) -> Found:
    """Every layer that has a ``qweight``."""
    found, names = Found(), stored.names()
    bits, version = settings.get("bits", 4), str(settings.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        found.faults.append(f"bits {bits} in version {version!r} (4 bits in version 'gemm' are)")
        return found
    for prefix in prefixes(names, ".qweight"):
        try:
            found.layers[f"{prefix}.weight"] = _layer(stored, names, prefix, settings)
        except LayerError as fault:
            found.faults.append(f"{prefix} {fault}")
    return found


def _layer(stored: Stored, names: Sequence[str], prefix: str, settings: Settings) -> Layer:
    parts = tuple(f"{prefix}.{part}" for part in ("qweight", "qzeros", "scales"))
    need(stored, names, *parts)
    rows, words = stored.info(parts[0]).shape
    shape = check_matrix((width(words, 4), rows))
    groups = stored.info(parts[2]).shape[0]
    if stored.info(parts[1]).shape != (groups, words):
        raise LayerError(f"has qzeros of {list(stored.info(parts[1]).shape)}")
    group = group_size(rows, groups, settings.get("group_size", settings.get("q_group_size")))
    form = GroupForm("i4", group, scale_type(stored, parts[2]), has_zeros=True)

    def read() -> GroupArray:
        q, zeros = (interleaved(stored.stored(name)) for name in parts[:2])
        scales = stored.stored(parts[2])
        return GroupArray(form.name, shape, q.T.copy(), scales.T.copy(), zeros.T.copy())

    return Layer(form, shape, parts, read)
