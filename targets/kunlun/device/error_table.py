"""Return codes of the XRE runtime: name, meaning and what to do, from public descriptions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class XreError:
    """One return code."""

    code: int
    name: str
    meaning: str
    remedy: str


def _table(*rows: tuple[int, str, str, str]) -> dict[int, XreError]:
    return {code: XreError(code, name, meaning, remedy) for code, name, meaning, remedy in rows}


_RELOAD = "close the executable and load the artifact again; if it stays, reset the device"
_LOGS = "see the kernel log (dmesg) and xpu-smi"
ERRORS = _table(
    (701, "INVALID_DEVICE", "no such device", "see xpu-smi and XPU_VISIBLE_DEVICES"),
    (702, "UNINIT", "the runtime is not initialised", "check the driver and SGLK_KUNLUN_EMULATOR"),
    (703, "NODEV", "no device on this machine", "run with --device emulator, or check /dev/xpu*"),
    (704, "VERSION", "runtime and driver do not fit", "install the XRE of the driver's version"),
    (705, "NOMEM", "out of device memory", "use fewer pages, shorter steps or a smaller model"),
    (706, "NOCPUMEM", "out of host memory", "free host memory"),
    (707, "INVALID_PARAM", "invalid parameter", "compile the model again; else report a bug"),
    (708, "NOXPUFUNC", "the kernel cannot be loaded", "compile the model again with this sglk"),
    (711, "SIMULATOR", "the simulator failed", "use a real device id (below 64)"),
    (712, "NOSUPPORT", "not supported by this runtime", "update XRE"),
    (713, "ABNORMAL", "the device failed before", _RELOAD),
    (714, "KEXCEPTION", "a kernel failed", _RELOAD),
    (715, "TIMEOUT", "a kernel took too long", "use smaller tiles or steps"),
    (716, "BUSY", "the device is busy", "wait for the other process or use another device"),
    (717, "USE_AFTER_CLOSE", "a handle was used after it was destroyed", "report a bug"),
    (718, "UCECC", "an uncorrectable memory error", "take the card out of service"),
    (719, "OVERHEAT", "the device is too hot", "check cooling"),
    (721, "WATCHDOG", "the watchdog stopped a kernel", "use smaller tiles"),
    (800, "UNEXPECT", "an unexpected failure", _LOGS),
    (801, "DEVRESET", "the device was reset", _RELOAD),
    (802, "HWEXCEPTION", "a hardware exception", _LOGS),
    (803, "HBM_INIT", "device memory did not start", _LOGS),
    (805, "PEERRESET", "a peer device was reset", _RELOAD),
    (808, "DMATIMEOUT", "a copy timed out", _LOGS),
    (809, "DMAABORT", "a copy was aborted: an address outside of an allocation", _RELOAD),
    (811, "OLDFW", "the firmware is too old", "update the firmware"),
    (813, "FAULT", "a fault of the device", _LOGS),
    (816, "HOSTMEM_ALREADY_REGISTERED", "host memory is registered already", "report a bug"),
)
LOST = frozenset({713, 714, 715, 717, 721, 801, 802, 805, 808, 809, 813})
"""After these the device, or what was loaded on it, no longer works."""


def describe(code: int) -> XreError:
    """The row of a code; unknown codes get one that says so."""
    unknown = XreError(code, f"XRE_{code}", "unknown to this sglk", _LOGS)
    return ERRORS.get(code, unknown)
