"""Products on a GPU: the cases of ``tests/kernels/matmul_cases.py`` and ``quantized_cases.py``.

In shares, since nearly all of the time goes into compiling kernels: processes take a share each.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.device
KERNELS = Path(__file__).parents[1] / "kernels"
SHARES = 12


def cases_of(name: str) -> ModuleType:
    """A module of cases, which is no test and in no package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, KERNELS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look there
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("name", ["matmul_cases", "quantized_cases"])
def test_products_on_the_gpu(
    on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch, name: str, share: int
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs tensor maps and e4m3: compute capability 9.0")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    assert not cases_of(name).check_all("cuda", share, SHARES)
