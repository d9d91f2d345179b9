"""The run-time face of the CUDA target: loads an artifact and runs its programs.

Imports only NumPy, the standard library, the other run-time faces and, when a driver is opened,
cuda-bindings.
"""

from .device import CudaDevice, open_device
from .executable import CudaExecutable

__all__ = ["CudaDevice", "CudaExecutable", "open_device"]
