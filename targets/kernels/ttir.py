"""Triton source to TTIR text, by Triton's own front end and passes; needs no GPU and no driver.

The CUDA back end is borrowed only for its registration of dialects; nothing after TTIR runs.
`tl.dot` may have any power-of-two size here, down to 1x1x1: no tensor core asks for 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import LoweringError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from triton.runtime.jit import JITFunction

_TARGET = ("cuda", 80, 32)
_FLOATS = ("fp64", "fp32", "fp16", "bf16")
_TYPES = {*_FLOATS, *(f"{sign}{bits}" for sign in "iu" for bits in (1, 8, 16, 32, 64))}


def to_ttir(fn: JITFunction, signature: Mapping[str, str], constants: Mapping[str, object]) -> str:
    """TTIR text of `fn`: one function, calls inlined, with source locations.

    `signature` maps each runtime argument to its type (``"*fp32"``, ``"i32"``, ...), `constants`
    each constexpr to its value; an argument given in `constants` is no parameter of the kernel.
    """
    source, context, backend, options = _frontend(fn, signature, constants)
    codegen = dict(backend.get_codegen_implementation(options))
    codegen["min_dot_size"] = lambda lhs, rhs: (1, 1, 1)
    try:
        module = source.make_ir(backend.target, options, codegen, backend.get_module_map(), context)
        _optimize(module)
    except Exception as error:
        message = f"{fn.__name__}: expected a Triton kernel that compiles, got {error}"
        raise LoweringError(message) from error
    return str(module)


def _frontend(
    fn: JITFunction, signature: Mapping[str, str], constants: Mapping[str, object]
) -> Any:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend

    full = _check_arguments(fn, signature, constants)
    backend = make_backend(GPUTarget(*_TARGET))
    # no silent contraction: a kernel that wants an FMA says tl.fma
    options = backend.parse_options({"enable_fp_fusion": False})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    return ASTSource(fn, full, dict(constants)), context, backend, options


def _check_arguments(
    fn: JITFunction, signature: Mapping[str, str], constants: Mapping[str, object]
) -> dict[str, str]:
    names = list(fn.arg_names)
    unknown = [name for name in (*signature, *constants) if name not in names]
    missing = [name for name in names if name not in signature and name not in constants]
    if unknown or missing:
        faults = f"unknown {unknown} and missing {missing}"
        raise LoweringError(f"{fn.__name__}: expected arguments {names}, got {faults}")
    for name, kind in signature.items():
        if kind.removeprefix("*") not in _TYPES:
            known = f"one of {sorted(_TYPES)} or a pointer to it"
            raise LoweringError(f"{fn.__name__}: expected {name} to be {known}, got {kind!r}")
    return {name: "constexpr" if name in constants else signature[name] for name in names}


def _optimize(module: Any) -> None:
    from triton._C.libtriton import ir, passes

    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.ttir.add_triton_licm(manager)
    passes.common.add_symbol_dce(manager)
    passes.ttir.add_loop_unroll(manager)
    passes.common.add_canonicalizer(manager)
    passes.common.add_cse(manager)
    manager.run(module, "sglk_ttir")
