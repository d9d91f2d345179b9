"""Every kernel of a Kunlun program: legal, free of known hazards, in the language of Triton 3.0.

TRITON30_PYTHON names the Python of an environment with triton 3.0.0 (nothing else is needed in it);
then all kernels are compiled by it too. The static check of the language always runs.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglk
from sglk.ir.dim import dim
from sglk.ir.dtype import BF16, F16, F32, I32
from sglk.ir.graph import Graph, Value
from sglk.ir.ops.attention import SLOTS, PagedAttention, RopeWriteKv, WriteKv
from sglk.ir.ops.elementwise import Add, Div, Exp, Mul
from sglk.ir.ops.linear import Linear
from sglk.ir.ops.moe import ExpertLinear
from sglk.ir.ops.norm import AddRmsNorm, LayerNorm
from sglk.ir.ops.order import TopK
from sglk.ir.ops.reduce import Softmax, Sum
from sglk.ir.ops.rope import Rope
from sglk.ir.ops.shape import Reshape, Slice, Transpose
from sglk.ir.types import TensorType
from sglk.targets.kernel import Kernel
from sglk.targets.kunlun.buffers import padded_bytes
from sglk.targets.kunlun.compile import lower, target_for
from sglk.targets.kunlun.legalize import check_kernel, hazard_risks, memory_use
from sglk.targets.tilec import KernelCache
from sglk.targets.ttir import kernel_ttir

KERNELS = Path(sglk.__file__).parent / "targets" / "kernels"
TARGET = target_for(())
SYMBOLS = ("tokens", "seqs", "pages", "rows")
T, S, P = dim("tokens"), dim("seqs"), dim("pages")


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.parent.name + path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step(weight: Any, cache: Any) -> Graph:
    """The Llama step graph of `tests/targets`, with pages of 128."""
    made = _module(Path(__file__).parent.parent / "targets" / "conftest.py")
    graph: Graph = made.make_step(1, weight, cache, 128)
    return graph


def other_ops() -> Graph:
    """Ops that a Llama does not have: norms of heads, windows, sinks, rows that all chips share."""
    g = Graph("step")

    def floats(name: str, *shape: Any) -> Value:
        return g.input(name, TensorType(F32, shape))

    def ints(name: str, *shape: Any) -> Value:
        return g.input(name, TensorType(I32, shape))

    def param(name: str, dtype: Any, *shape: int) -> Value:
        return g.param(name, TensorType(dtype, shape))

    x, cos, sin, slots = floats("x", T, 128), floats("c", T, 16), floats("s", T, 16), ints("i", T)
    state = g.state("kv", TensorType(BF16, (1, 2, SLOTS, 2, 64)))
    w, norm = param("w", F32, 128), param("norm", F32, 64)
    total, y = g.append(AddRmsNorm(1e-5), x, x, w)
    y = g.emit(LayerNorm(1e-5), g.emit(Add(), g.emit(Exp(), y), total), w, w)
    linear = Linear(has_bias=True, activation="gelu_tanh")
    qkv = g.emit(linear, y, param("p", BF16, 512, 128), param("b", F32, 512))
    rope = RopeWriteKv(4, 0, BF16, True, 1e-6)
    q, state = g.append(rope, qkv, cos, sin, state, slots, norm, norm)
    k, v = (g.emit(Slice(1, start, start + 2, 1), q) for start in (0, 2))
    (state,) = g.append(WriteKv(0, BF16), state, k, v, slots)
    attention = PagedAttention(0, 0.125, 128, window=100, softcap=30.0, has_sinks=True)
    tables = ints("starts", S + 1), ints("lens", S), ints("table", S, P)
    a = g.emit(attention, q, state, *tables, param("sinks", F32, 4))
    a = g.emit(Transpose((1, 0, 2)), g.emit(Rope(), a, cos, sin))
    g.outputs = [g.emit(Sum(-1), g.emit(Softmax(-1), a)), expert_ops(g, x)]
    return g


def expert_ops(g: Graph, x: Value) -> Value:
    """A mixture of experts: what is chosen has less than 64 elements, and 60 experts no power."""
    router = g.param("router", TensorType(F32, (60, 128)))
    weights, ids = g.append(TopK(3), g.emit(Softmax(-1), g.emit(Linear(), x, router)))
    total = g.emit(Sum(-1, keepdim=True), weights)
    experts = [g.param(f"e{t}", TensorType(t, (60, 128, 128))) for t in (F16, BF16)]
    y = x
    for weight in experts:
        y = g.emit(ExpertLinear(), y, weight, ids)
    scaled = g.emit(Mul(), y, g.emit(Reshape((T, 3, 1)), g.emit(Div(), weights, total)))
    return g.emit(Sum(1), scaled)


def kernels_of(graph: Graph) -> dict[str, Kernel]:
    lowering = lower(graph, TARGET)
    lowering.program("step", SYMBOLS)
    return lowering.kernels


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    for types in ((F32, F32), (F16, F16), (BF16, BF16)):
        found |= kernels_of(step(*types))
    return found | kernels_of(other_ops())


@pytest.fixture(scope="module")
def texts(kernels: dict[str, Kernel]) -> dict[str, str]:
    cache = KernelCache()
    return {symbol: kernel_ttir(kernel, cache) for symbol, kernel in kernels.items()}


def test_no_kernel_breaks_a_limit(texts: dict[str, str]) -> None:
    for symbol, text in texts.items():
        assert check_kernel(text, TARGET.chip) == [], symbol


def test_no_kernel_of_our_own_relies_on_what_goes_wrong_silently(
    kernels: dict[str, Kernel], texts: dict[str, str]
) -> None:
    """Rows that all chips share mask their last block; what they load there is not stored."""
    for symbol, text in texts.items():
        risks = {risk.limit for risk in hazard_risks(text)}
        shared = kernels[symbol].function.startswith("elementwise.")
        assert risks <= ({"other"} if shared else set()), symbol


def test_use_of_memory_is_modelled_by_path(
    kernels: dict[str, Kernel], texts: dict[str, str]
) -> None:
    for symbol, text in texts.items():
        use = memory_use(text, TARGET.chip)
        function = kernels[symbol].function
        products = ("whole_linear.", "row_attention.", "whole_experts.expert_linear")
        assert use.on_engine == function.startswith(products)
        assert (use.uni_sram if use.on_engine else use.lm) > 0


# Padding --------------------------------------------------------------------------------------


def test_buffers_have_memory_for_whole_tiles() -> None:
    assert padded_bytes(TensorType(F32, (T, 64))).subs({T: 1}) == 64 * 64 * 4 + 256  # type: ignore[union-attr]
    program = lower(step(F32, F32), TARGET).program("step", SYMBOLS)
    assert program.outputs[0].shape == ("rows", "96")
    assert program.outputs[0].bytes == "((384 * rows) + 24448)"


def test_a_wide_fp16_product_is_split() -> None:
    g = Graph("step")
    x = g.input("x", TensorType(F32, (T, 64)))
    g.outputs = [g.emit(Linear(), x, g.param("w", TensorType(F16, (248_320, 64))))]
    lowering = lower(g, TARGET)
    program = lowering.program("forward", ("tokens",))
    offsets = {(c.args[1].offset, c.args[2].offset) for c in program.buckets[0].calls}
    half = 124_160
    assert offsets == {("0", "0"), (str(half * 64 * 2), str(half * 4))}
    strides = {dict(k.constants)["STRIDE"] for k in lowering.kernels.values()}
    assert strides == {248_320}


# Triton 3.0 -----------------------------------------------------------------------------------

LANGUAGE = {
    "abs", "arange", "bfloat16", "ceil", "constexpr", "cos", "dot", "erf", "exp", "float16",
    "float32", "floor", "fma", "full", "int32", "int64", "int8", "load", "log", "max",
    "maximum", "min", "minimum", "num_programs", "pointer_type", "program_id", "sin", "sqrt",
    "static_assert", "static_range", "store", "sum", "trans", "where", "zeros",
}  # fmt: skip
"""What kernels may take of `triton.language`: all of it is in 3.0.0, with the arguments we use."""


def functions_of(kernels: dict[str, Kernel]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Kernel functions of a program and all that they call, across modules."""
    trees: dict[str, dict[str, tuple[str, ast.FunctionDef]]] = {}

    def names(module: str) -> dict[str, tuple[str, ast.FunctionDef]]:
        if module not in trees:
            tree = ast.parse((KERNELS / f"{module}.py").read_text())
            own = {n.name: (module, n) for n in tree.body if isinstance(n, ast.FunctionDef)}
            for node in tree.body:
                if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                    theirs = names(node.module)
                    own |= {a.name: theirs[a.name] for a in node.names if a.name in theirs}
            trees[module] = own
        return trees[module]

    todo = [names(k.function.partition(".")[0])[k.function.partition(".")[2]]
            for k in kernels.values()]  # fmt: skip
    seen: set[tuple[str, str]] = set()
    while todo:
        module, function = todo.pop()
        if (module, function.name) in seen:
            continue
        seen.add((module, function.name))
        yield module, function
        called = {n.func.id for n in ast.walk(function)
                  if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}  # fmt: skip
        todo += [names(module)[name] for name in called & names(module).keys()]


def test_kernels_keep_to_the_language_of_triton_3_0(kernels: dict[str, Kernel]) -> None:
    for module, function in functions_of(kernels):
        where = f"{module}.{function.name}"
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tl":
                assert node.attr in LANGUAGE, f"{where}: tl.{node.attr}"
            if isinstance(node, ast.BoolOp):
                assert len(node.values) == 2, f"{where}:{node.lineno}: parenthesize and, or"
            assert not isinstance(node, ast.ListComp | ast.GeneratorExp | ast.Lambda), where
        ends = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
        assert len(ends) <= 1, f"{where}: one return, at the end"


def test_triton_3_0_compiles_every_kernel(kernels: dict[str, Kernel]) -> None:
    python = os.environ.get("TRITON30_PYTHON")
    if not python:
        pytest.skip("TRITON30_PYTHON names no Python with triton 3.0.0")
    cases = [
        {"function": k.function, "signature": dict(k.signature), "constants": dict(k.constants)}
        for k in kernels.values()
    ]
    script = Path(__file__).with_name("triton30_frontend.py")
    request = json.dumps({"kernels": str(KERNELS.parent), "cases": cases})
    run = subprocess.run([python, str(script)], input=request, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    assert answer["version"] == "3.0.0"
    failed = {c["function"]: r["error"] for c, r in zip(cases, answer["results"], strict=True)
              if "error" in r}  # fmt: skip
    assert not failed
