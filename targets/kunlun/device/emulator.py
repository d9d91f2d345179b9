"""``--device emulator``: the module that `targets.registry` asks for it."""

from __future__ import annotations

from .device import EmulatorDevice


def open_device() -> EmulatorDevice:
    """The emulated device."""
    return EmulatorDevice()
