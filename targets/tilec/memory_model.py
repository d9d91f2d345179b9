"""Numbers and rules of a chip whose cores see no main memory: what emulated kernels must keep to.

tilec knows no chip: a target passes its own numbers. Every rule has a mark that says how sure we
are of it: ``documented`` (a public source states it), ``inferred`` (concluded from such facts) or
``modelled`` (our own model of how the vendor's compiler places things).
"""

from __future__ import annotations

import dataclasses

DOCUMENTED, INFERRED, MODELLED = "documented", "inferred", "modelled"


@dataclasses.dataclass(frozen=True)
class Limit:
    """A rule that a kernel can break."""

    name: str
    mark: str
    what: str
    remedy: str

    def text(self) -> str:
        """How an error names it."""
        return f"limit {self.name}, {self.mark}"


LIMITS = {
    limit.name: limit
    for limit in (
        Limit("dtype", DOCUMENTED, "no fp64, fp8 or complex numbers", "use fp32, bf16 or fp16"),
        Limit("param_bytes", DOCUMENTED, "bytes of all parameters of a kernel", "pass less"),
        Limit("rank", DOCUMENTED, "dimensions of a tile in a kernel with tt.dot", "use 2-D tiles"),
        Limit("reduce_rank", DOCUMENTED, "dimensions of a reduced tile", "reduce 2-D tiles"),
        Limit("reduce_axis", DOCUMENTED, "a reduction runs over the last axis", "transpose"),
        Limit("reduce_lanes", DOCUMENTED, "lanes that a reduction covers", "reduce in chunks"),
        Limit("math_functions", DOCUMENTED, "different functions by table", "split the kernel"),
        Limit("dma_strided", DOCUMENTED, "element-strided block copies", "copy contiguous rows"),
        Limit("dma_dtype", DOCUMENTED, "element types of block copies", "load scalars, or floats"),
        Limit("gather_masked", DOCUMENTED, "gathers beside tt.dot have a mask", "give a mask"),
        Limit("gather_dtype", DOCUMENTED, "element types of gathers", "use i16, i32 or floats"),
        Limit("int_to_float", DOCUMENTED, "casts of integer tiles to floats", "cast before"),
        Limit("atomics", DOCUMENTED, "exchange and compare-and-swap", "use another operation"),
        Limit("dma_bounds", DOCUMENTED, "a block, masked lanes too, lies in a live allocation",
              "pad the allocation or split the block"),
        Limit("dma_alignment", INFERRED, "an address is a multiple of its element",
              "align the offset"),
        Limit("lm_bytes", MODELLED, "local memory of a core: tiles and stack", "use smaller tiles"),
        Limit("sm_bytes", MODELLED, "shared memory of a cluster", "reduce fewer rows at a time"),
        Limit("uni_sram_bytes", MODELLED, "memory of a matrix engine", "use smaller tiles"),
    )
}  # fmt: skip

HAZARDS = {
    "other": "`other=` of a masked load is ignored: masked lanes hold what was there before",
    "reduce-lanes": "a reduction of one row covers the first lanes only",
    "short-tail": "float operations on at most 32 lanes get the last lanes wrong",
    "int-to-float": "a cast of an integer tile to float gives zeros beside tt.dot",
    "copy-strided": "beside tt.dot, a strided store is dropped and a load of stride 0 reads on",
    "where-bf16": "a select of bf16 tiles takes its first operand",
    "half-product": "a product of fp16 and fp32 is evaluated in fp16",
    "unrolled-loop": "a loop inside an unrolled one runs in the first copy only",
    "negative-zero": "-0.0 != 0.0 holds",
}
"""Known silent errors of the vendor's compiler that `MemoryModel.hazards` reproduces, by name."""


@dataclasses.dataclass(frozen=True)
class MemoryModel:
    """One chip; the numbers come from the target."""

    name: str
    clusters: int
    cores: int
    """Cores of a cluster: the last dimension of a tile is spread over them."""
    engines: int
    """Matrix engines: they run kernels with tt.dot."""
    lm_bytes: int
    lm_stack_bytes: int
    lm_align: int
    sm_bytes: int
    uni_sram_bytes: int
    uni_row_align: int
    uni_buffers: int
    """Copies of a tile that a loop loads into a matrix engine."""
    buffer_bytes: int
    """Bytes of one tile that a core holds at a time; bounds the lanes of a reduction."""
    param_bytes: int
    rank_max: int
    math_functions: int
    pointer_align: int = 8
    """Alignment of pointers among the parameters."""
    rates: tuple[tuple[str, float], ...] = ()
    """Further settings of the emulator by name: memory sizes, rates of the modelled time."""
    hazards: frozenset[str] = frozenset()

    def with_hazards(self, *names: str) -> MemoryModel:
        """The same chip with some (without names: all) silent errors."""
        return dataclasses.replace(self, hazards=frozenset(names or HAZARDS))

    @property
    def lanes(self) -> int:
        """Lanes of four bytes that one pass of a reduction covers."""
        return self.cores * self.buffer_bytes // 4
