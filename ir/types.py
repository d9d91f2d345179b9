"""The type of a value: element type and logical shape. Physical layout is a target's decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import VerifyError
from .dim import Dim, as_dim, concrete, dim_text, floordiv, prod, substitute
from .dtype import DType


@dataclass(frozen=True)
class TensorType:
    """Element type and shape, printed as the text form writes them.

    >>> from .dim import dim
    >>> from .dtype import F32
    >>> print(TensorType(F32, (dim("tokens"), 576)))
    f32[tokens, 576]
    """

    dtype: DType
    shape: tuple[Dim, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(as_dim(d) for d in self.shape))
        sizes = [d for d in self.shape if isinstance(d, int)]
        if any(d < 0 for d in sizes):
            raise VerifyError(f"type {self}: expected sizes of at least 0")
        last = self.shape[-1] if self.shape else 1
        if isinstance(last, int) and last % self.dtype.block:
            raise VerifyError(f"type {self}: expected rows of whole blocks of {self.dtype.block}")

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(dim_text(d) for d in self.shape)}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        return prod(self.shape)

    @property
    def bytes(self) -> Dim:
        """Bytes of the values; block types count whole blocks of rows, group forms rows."""
        if not self.dtype.is_block:
            return as_dim(self.size * int(self.dtype.bits // 8))
        if self.dtype.form is not None:
            return as_dim(prod(self.shape[:-1]) * self.dtype.form.row_bytes(int(self.shape[-1])))
        return as_dim(floordiv(self.size, self.dtype.block) * self.dtype.block_bytes)

    def with_shape(self, *shape: Dim) -> TensorType:
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def substitute(self, sizes: Mapping[str, Dim]) -> TensorType:
        return TensorType(self.dtype, tuple(substitute(d, sizes) for d in self.shape))

    def concrete(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(concrete(d, sizes) for d in self.shape)


def broadcast_shapes(where: str, *shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """NumPy's broadcasting over symbolic dims: equal, or one of them 1."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(_broadcast_dims(where, dims) for dims in zip(*padded, strict=True))


def _broadcast_dims(where: str, dims: tuple[Dim, ...]) -> Dim:
    wide = {d for d in dims if d != 1}
    if len(wide) > 1:
        raise VerifyError(f"{where}: expected equal dims or 1, got {' and '.join(map(str, dims))}")
    return wide.pop() if wide else 1
