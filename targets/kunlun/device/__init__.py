"""The run-time face of the Kunlun target: drives libxpurt, the vendor's or the emulator's.

Imports only NumPy, the standard library and the other run-time faces.
"""

from .device import EmulatorDevice, KunlunDevice, open_device
from .executable import KunlunExecutable

__all__ = ["EmulatorDevice", "KunlunDevice", "KunlunExecutable", "open_device"]
