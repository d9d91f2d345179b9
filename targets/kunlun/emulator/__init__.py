"""Makes the emulator's library and the kernels that run on it; see README.md."""

from .build import build_emulated, build_emulator_library
from .predict import predict, predict_programs, predict_step
from .settings import emulated_model

__all__ = [
    "build_emulated",
    "build_emulator_library",
    "emulated_model",
    "predict",
    "predict_programs",
    "predict_step",
]
