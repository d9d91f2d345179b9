"""What went wrong in the driver, in a sentence with what to do.

Names are those of `CUresult` without ``CUDA_ERROR_``; the driver API documents each of them.
"""

from __future__ import annotations

_LOST = (
    "the context is lost: load the artifact again; SGLK_GRAPHS=off with compute-sanitizer shows"
    " which kernel"
)
_CLOSED = "it is closed or belongs to another context: load the artifact again"
REMEDIES = {
    "OUT_OF_MEMORY": "take fewer pages or a smaller step, or end other processes on this GPU",
    "NO_DEVICE": "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "INVALID_DEVICE": "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "DEVICE_UNAVAILABLE": "another process uses it exclusively: check nvidia-smi",
    "DEVICE_NOT_LICENSED": "the GPU needs a license",
    "STUB_LIBRARY": "libcuda is a stub: put the driver's own library first on the library path",
    "SYSTEM_NOT_READY": "start the fabric manager or wait until the system is up",
    "SYSTEM_DRIVER_MISMATCH": "the driver was updated under a running system: reboot",
    "COMPAT_NOT_SUPPORTED_ON_DEVICE": "remove the CUDA compatibility package or update the driver",
    "OPERATING_SYSTEM": "check dmesg and the permissions of /dev/nvidia*",
    "UNKNOWN": "load the module nvidia_uvm (nvidia-modprobe -u) and check dmesg",
    "NO_BINARY_FOR_GPU": "compile the model for this chip",
    "INVALID_IMAGE": "the kernel is damaged: compile the model again",
    "INVALID_SOURCE": "the kernel is damaged: compile the model again",
    "INVALID_PTX": "compile the model for this chip, or update the driver",
    "UNSUPPORTED_PTX_VERSION": "update the driver, or compile the model for this chip",
    "JIT_COMPILER_NOT_FOUND": "install the driver's PTX compiler, or compile for this chip",
    "NOT_FOUND": "the kernel is not in its module: compile the model again",
    "INVALID_VALUE": "an argument is out of range: please report it",
    "INVALID_HANDLE": _CLOSED,
    "INVALID_CONTEXT": _CLOSED,
    "CONTEXT_IS_DESTROYED": _CLOSED,
    "DEINITIALIZED": "the process is ending",
    "LAUNCH_OUT_OF_RESOURCES": "the kernel needs more registers or memory than a block may have",
    "ILLEGAL_ADDRESS": _LOST,
    "MISALIGNED_ADDRESS": _LOST,
    "ILLEGAL_INSTRUCTION": _LOST,
    "INVALID_ADDRESS_SPACE": _LOST,
    "INVALID_PC": _LOST,
    "HARDWARE_STACK_ERROR": _LOST,
    "LAUNCH_FAILED": _LOST,
    "LAUNCH_TIMEOUT": "a kernel ran too long for a GPU that drives a display: use another GPU",
    "ASSERT": _LOST,
    "ECC_UNCORRECTABLE": "the GPU's memory failed: see nvidia-smi -q, reset or replace it",
    "NVLINK_UNCORRECTABLE": "a link between GPUs failed: see nvidia-smi nvlink",
    "STREAM_CAPTURE_INVALIDATED": "a call within the capture failed: set SGLK_GRAPHS=off",
    "STREAM_CAPTURE_UNSUPPORTED": "a call cannot be captured: set SGLK_GRAPHS=off",
}


def describe(where: str, what: str, name: str, text: str, extra: str = "") -> str:
    """The sentence for a failed call.

    >>> describe("cuda:0", "allocate weights", "CUDA_ERROR_NO_DEVICE", "no device is there")
    'cuda:0: allocate weights: no device is there (check nvidia-smi and CUDA_VISIBLE_DEVICES)'
    """
    short = name.removeprefix("CUDA_ERROR_")
    remedy = REMEDIES.get(short, f"the driver calls it {name}")
    return f"{where}: {what}: {text}{extra} ({remedy})"
