"""Compiles Triton kernels in a process of its own: ``python -m sglk.targets.cuda.triton_worker``.

Reads one job a line (JSON), answers one line each. Processes and not threads: Triton's compiler
holds Python's lock most of the time. A job is

    {"function": "gemv.linear", "signature": [["x", "*bf16"], ...], "constants": [["K", 64], ...],
     "options": [["num_warps", 4], ...], "capability": 90, "path": "where the result goes"}

and its result a kernel pack of ``cubin`` and ``ptx``, with what a launch must know as their meta.
The answer is {"error": "..."} with an empty text when all went well.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from ...errors import LoweringError
from ..artifact.kernel_pack import PackedKernel, write_pack
from ..kernel import Kernel

ALIGNED = "aligned"
"""The option that names pointers which are multiples of 16 bytes."""
WARP = 32
_RESOURCES = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def compile_kernel(kernel: Kernel, capability: int) -> bytes:
    """The pack of one kernel, or `LoweringError` with what Triton or ptxas said."""
    log = io.StringIO()
    try:
        with contextlib.redirect_stdout(log):
            compiled = _compile(kernel, capability)
    except Exception as error:  # Triton raises what it likes; all of it is about this one kernel
        text = " ".join(f"{type(error).__name__}: {error}".split())[:1000]
        raise LoweringError(f"{kernel.function} for sm_{capability}: {text}") from error
    meta = _meta(kernel, compiled.metadata) | _resources(log.getvalue())
    code = compiled.asm
    return write_pack(
        {
            "cubin": PackedKernel({**meta, "kind": "cubin"}, code["cubin"]),
            "ptx": PackedKernel({**meta, "kind": "ptx"}, code["ptx"].encode() + b"\0"),
        }
    )


def _compile(kernel: Kernel, capability: int) -> Any:
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    knobs.nvidia.dump_ptxas_log = True
    knobs.compilation.disable_line_info = True  # the code must not depend on where sglk lies
    knobs.compilation.always_compile = True
    function = kernel.load()
    constants, options = dict(kernel.constants), dict(kernel.options)
    aligned = set(options.pop(ALIGNED, ()))
    types = dict(kernel.signature)
    signature = {n: "constexpr" if n in constants else types[n] for n in function.arg_names}
    promise = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(function.arg_names)
        if name in aligned
    }
    source = ASTSource(function, signature=signature, constexprs=constants, attrs=promise)
    return triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=options)


def _meta(kernel: Kernel, metadata: Any) -> dict[str, object]:
    return {
        "entry": metadata.name,
        "num_warps": metadata.num_warps,
        "num_ctas": metadata.num_ctas,
        "shared": metadata.shared,
        "global_scratch": metadata.global_scratch_size,
        "profile_scratch": metadata.profile_scratch_size,
        "params": [kind for _, kind in kernel.signature],
        "pdl": bool(metadata.launch_pdl),
    }


def _resources(log: str) -> dict[str, object]:
    """Registers of a thread and spilled bytes, as ``ptxas -v`` prints them."""
    registers, spills = _RESOURCES.search(log), _SPILLS.search(log)
    if registers is None or spills is None:
        return {"regs": None, "spills": None}
    return {"regs": int(registers[1]), "spills": int(spills[2]) + int(spills[3])}


def _answer(line: str) -> dict[str, str]:
    job = json.loads(line)
    pairs = {k: tuple((n, _frozen(v)) for n, v in job[k]) for k in ("constants", "options")}
    signature = tuple((name, kind) for name, kind in job["signature"])
    kernel = Kernel(job["function"], signature, pairs["constants"], pairs["options"])
    try:
        Path(job["path"]).write_bytes(compile_kernel(kernel, job["capability"]))
    except (LoweringError, OSError) as error:
        return {"error": str(error)}
    return {"error": ""}


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def main() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            answer = _answer(line)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
