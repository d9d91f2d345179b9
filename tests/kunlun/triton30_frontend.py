"""Run by a Python that has Triton 3.0.0: kernels to TTIR, from JSON on standard input.

Input: {"kernels": folder that holds the package `kernels`, "cases": [{"function", "signature",
"constants"}]}. Output: {"version", "results": [{"ttir"} or {"error"}]}. Imports nothing of sglk.
"""

import importlib
import json
import sys
from typing import Any


def to_ttir(function: Any, signature: dict[str, str], constants: dict[str, Any]) -> str:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend

    names = list(function.arg_names)
    kinds = {names.index(name): kind for name, kind in signature.items()}
    fixed = {names.index(name): value for name, value in constants.items()}
    source = ASTSource(function, kinds, fixed)
    backend = make_backend(GPUTarget("cuda", 80, 32))
    options = backend.parse_options({"enable_fp_fusion": False, "allow_fp8e4nv": False})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(options, backend.get_codegen_implementation(), context)
    return str(backend.make_ttir(module, {}, options))


def main() -> None:
    request = json.load(sys.stdin)
    sys.path.insert(0, request["kernels"])
    import triton

    results = []
    for case in request["cases"]:
        module, _, name = case["function"].rpartition(".")
        function = getattr(importlib.import_module("kernels." + module), name)
        try:
            results.append({"ttir": to_ttir(function, case["signature"], case["constants"])})
        except Exception as error:  # noqa: BLE001 - reported to the test, whatever it is
            results.append({"error": f"{type(error).__name__}: {error}"})
    json.dump({"version": triton.__version__, "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
