"""The run-time face of the CPU target: loads an artifact and runs its programs.

Imports only NumPy, the standard library and the other run-time faces.
"""

from .bound_program import CallTime
from .device import CpuDevice, open_device
from .executable import CpuExecutable

__all__ = ["CallTime", "CpuDevice", "CpuExecutable", "open_device"]
