"""Makes the emulator's library and the kernels that run on it; see README.md."""

from .build import build_emulated, build_emulator_library
from .predict import predict

__all__ = ["build_emulated", "build_emulator_library", "predict"]
