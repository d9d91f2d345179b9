"""Targets by name, and plug-ins that fail."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest
from sglk.errors import DeviceError
from sglk.targets import registry


class _Plugin:
    name = "chip"

    def load(self) -> None: ...

    def kv_bytes_per_page(self) -> None: ...


def _broken() -> object:
    raise RuntimeError("driver too old")


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint(name, f"{__name__}:{value}", registry.GROUP)
        for name, value in [("chip", "_Plugin"), ("old", "_broken"), ("odd", "str"), ("gone", "x")]
    ]
    loaded = {"chip": _Plugin, "old": _broken, "odd": str}

    def load(point: importlib.metadata.EntryPoint) -> object:
        if point.name not in loaded:
            raise ModuleNotFoundError("No module named 'chip_sdk'")
        return loaded[point.name]

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", load)


def test_plugins_are_found(plugins: None) -> None:
    assert registry.known_targets() == (*registry._OURS, "chip", "gone", "odd", "old")
    assert registry.open_device("chip").name == "chip"
    assert registry.open_device("cpu").name == "cpu"


def test_unknown_name_lists_the_known(plugins: None) -> None:
    with pytest.raises(DeviceError, match=r"expected one of \['cpu', .*'chip', .*\], got 'tpu'"):
        registry.open_device("tpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("old", "its plug-in .* failed: driver too old"),
        ("gone", "failed: No module named 'chip_sdk'"),
        ("odd", "expected a device from"),
    ],
)
def test_failing_plugins_are_named(plugins: None, name: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        registry.open_device(name)


def test_opening_the_cpu_loads_no_compiler() -> None:
    code = (
        "import sys; from sglk.targets.registry import open_device; open_device('cpu');"
        "print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    assert not {"torch", "triton", "sympy", "onnx", "sglk.ir", "sglk.passes"} & loaded
