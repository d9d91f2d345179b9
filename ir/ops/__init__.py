"""The op catalogue. Importing this package registers every op."""

from . import attention, elementwise, linear, moe, norm, reduce, rope, shape, sparse

__all__ = ["attention", "elementwise", "linear", "moe", "norm", "reduce", "rope", "shape", "sparse"]
