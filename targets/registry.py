"""Devices by name, imported only when asked for.

Our own targets are listed here; an installed package adds one with an entry point in the group
``sglk.targets``: its name is the target, its object a function without arguments that returns a
`Device`.

>>> open_device("cpu").name
'cpu'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from ..errors import DeviceError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .device import Device

GROUP = "sglk.targets"
_OURS = {
    "cpu": ".cpu.device",
    "cuda": ".cuda.device",
    "kunlun": ".kunlun.device",
    "emulator": ".kunlun.device.emulator",
}
"""Module of each target of ours, with a function `open_device`."""
_NUMBERED = frozenset({"cuda"})
"""Targets whose `open_device` takes a number: a machine may have several such devices."""


def known_targets() -> tuple[str, ...]:
    """Names that `open_device` takes, ours first."""
    return tuple(dict.fromkeys([*_OURS, *sorted(_entry_points())]))


def open_device(name: str) -> Device:
    """The device of a target, ``cuda:1`` the second one; an unknown name raises `DeviceError`."""
    target, colon, number = name.partition(":")
    if target in _OURS and (not colon or target in _NUMBERED):
        module = importlib.import_module(_OURS[target], __package__)
        return cast("Device", module.open_device(number) if number else module.open_device())
    points = _entry_points()
    if name not in points:
        raise DeviceError(f"target: expected one of {list(known_targets())}, got {name!r}")
    return _open_plugin(points[name])


def _entry_points() -> dict[str, EntryPoint]:
    # Imported here: it costs more than our own device, which needs no entry point.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def _open_plugin(point: EntryPoint) -> Device:
    """Whatever a plug-in raises while loading becomes one sentence with its name and cause."""
    try:
        device = point.load()()
    except Exception as error:
        raise DeviceError(
            f"target {point.name}: its plug-in {point.value} failed: {error} (reinstall it)"
        ) from error
    if not hasattr(device, "load") or not hasattr(device, "kv_bytes_per_page"):
        raise DeviceError(
            f"target {point.name}: expected a device from {point.value}, got {device!r}"
        )
    return cast("Device", device)
