"""Is this machine ready to run artifacts on Kunlun cards?

Every number is from public documents and was not tried on hardware: what they agree on fails a
machine, what a single source or a third party says is a warning.
"""

from __future__ import annotations

import re

from ...machine import Check, Finding, Machine, Wanted, version
from .library import VENDOR_LIBRARY

NO_CARD = "no Kunlun card: expected /dev/xpu0 and up with /dev/xpuctrl, got none"
VENDOR_IDS = {"0x1d22", "0x2057"}
P800_IDS = {"0x3686", "0x3687", "0x3688", "0x3689"}
"""PCI ids, by Paddle's installation guide for P800."""
LEAST_DRIVER, TESTED_DRIVER = "5.0.21.16", "5.0.21.26"
"""What HAMi asks for, and what FastDeploy does."""
LEAST_FIRMWARE = "1.48"
MASK_DRIVER = "5.0.21.37"
"""XRE above which masked DMA may pass over lanes (dma_excp_mask)."""
CARD_MIB = 98304
"""Memory of a P800, by HAMi and a published measurement."""
WINGS = ({0, 1, 2, 3}, {4, 5, 6, 7})
"""Cards that are linked all to all, by HAMi's topology and FastDeploy's rule for four cards."""
LIBRARY_FOLDERS = ("/usr/local/xpu/so", "/usr/local/xpu/lib64", "/usr/lib64", "/usr/lib")
CXX_SYMBOLS = "GLIBCXX_3.4.30"
"""What the vendor's launcher needs of libstdc++."""
TESTED_HOSTS = ("8563C", "7490")
"""Intel 8563C and Hygon C86 7490, by FastDeploy's documents."""
DRIVER_HELP = "install the XRE driver and runtime (packages of Kunlunxin), then reboot"


def _smi(machine: Machine) -> str:
    """The management tool's table; older packages spell its name with an underscore."""
    return machine.output("xpu-smi") or machine.output("xpu_smi") or ""


def _cards(machine: Machine) -> list[str]:
    return machine.names("/dev/xpu[0-9]*")


def _pci(machine: Machine) -> list[tuple[str, str]]:
    """(vendor, device) of Kunlun functions on the PCI bus."""
    found = []
    for path in machine.names("/sys/bus/pci/devices/*/vendor"):
        vendor = (machine.read(path) or "").strip()
        if vendor in VENDOR_IDS:
            device = machine.read(path.removesuffix("vendor") + "device") or ""
            found.append((vendor, device.strip()))
    return found


def nodes(machine: Machine, wanted: Wanted) -> Finding:
    found, on_bus = _cards(machine), _pci(machine)
    if not found:
        if on_bus:
            return Finding(
                "fail", f"{NO_CARD}; the PCI bus has {len(on_bus)}: no driver", DRIVER_HELP
            )
        return Finding(
            "fail", NO_CARD, "run --device emulator here; artifacts for P800 compile without a card"
        )
    control = "/dev/xpuctrl"
    if control not in machine.names(control):
        return Finding("fail", f"{len(found)} cards, no {control}", DRIVER_HELP)
    refused = [path for path in (*found, control) if not machine.may_use(path)]
    if refused:
        return Finding(
            "fail", f"no permission for {', '.join(refused)}", "join the group that owns the nodes"
        )
    return Finding("ok", f"{len(found)} cards and {control}")


def model(machine: Machine, wanted: Wanted) -> Finding | None:
    found = _pci(machine)
    if not found:
        return None
    other = [device for _, device in found if device not in P800_IDS]
    if other:
        return Finding(
            "warn",
            f"PCI device {other[0]}: expected a P800, {', '.join(sorted(P800_IDS))}",
            "only P800 is served by current software; compile with --target kunlun:xpu2 for R200",
        )
    return Finding("ok", f"{len(found)} P800 on the PCI bus")


def _stated(machine: Machine, what: str) -> str:
    """``Driver Version: 5.0.21.26`` in the tool's output, or ""."""
    match = re.search(
        rf"{what}\s*Version\s*[:|]?\s*v?(\d+(?:\.\d+)+)", _smi(machine), re.IGNORECASE
    )
    return match[1] if match else ""


def driver(machine: Machine, wanted: Wanted) -> Finding:
    stated = _stated(machine, "Driver")
    if not stated:
        return Finding(
            "warn",
            "the driver's version is not known: xpu-smi is missing or prints it otherwise",
            f"see that it is {TESTED_DRIVER} or newer",
        )
    if version(stated) < version(LEAST_DRIVER):
        return Finding("fail", f"driver {stated}, {LEAST_DRIVER} is needed", DRIVER_HELP)
    if version(stated) < version(TESTED_DRIVER):
        return Finding(
            "warn", f"driver {stated}; others are known to run with {TESTED_DRIVER}", DRIVER_HELP
        )
    return Finding("ok", f"driver {stated}")


def firmware(machine: Machine, wanted: Wanted) -> Finding:
    stated = _stated(machine, "Firmware")
    if not stated:
        return Finding(
            "warn",
            "the firmware's version is not known",
            f"see that it is {LEAST_FIRMWARE} or newer",
        )
    if version(stated) < version(LEAST_FIRMWARE):
        evidence = f"firmware {stated}; FastDeploy asks for {LEAST_FIRMWARE}"
        return Finding("warn", evidence, "update the card's firmware")
    return Finding("ok", f"firmware {stated}")


def library(machine: Machine, wanted: Wanted) -> Finding:
    """The runtime, by what the loader finds."""
    found = machine.numbers(VENDOR_LIBRARY, "xpu_get_runtime_version", 2)
    if found:
        return Finding("ok", f"{VENDOR_LIBRARY}, runtime {found[0]}.{found[1]}")
    if found is not None:
        return Finding("warn", f"{VENDOR_LIBRARY} does not say its version", DRIVER_HELP)
    for folder in LIBRARY_FOLDERS:
        if machine.names(f"{folder}/{VENDOR_LIBRARY}*"):
            return Finding(
                "fail",
                f"{folder} has {VENDOR_LIBRARY}, the loader does not find it",
                f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH",
            )
    return Finding("fail", f"cannot load {VENDOR_LIBRARY}", DRIVER_HELP)


def standard_library(machine: Machine, wanted: Wanted) -> Finding | None:
    """The launcher was built by a newer compiler than old systems have."""
    text = machine.output("ldconfig", "-p") or ""
    match = re.search(r"libstdc\+\+\.so\.6 \(.*=> (\S+)", text)
    if match is None:
        return None
    symbols = machine.output("grep", "-ao", "GLIBCXX_3[.][0-9.]*", match[1]) or ""
    if symbols and CXX_SYMBOLS not in symbols.split():
        return Finding(
            "warn",
            f"{match[1]} has no {CXX_SYMBOLS}, which the vendor's launcher asks for",
            "use a system with GCC 12's libstdc++",
        )
    return Finding("ok", f"{match[1]} has {CXX_SYMBOLS}") if symbols else None


def memory(machine: Machine, wanted: Wanted) -> Finding | None:
    totals = [int(t) for t in re.findall(r"/\s*(\d{4,6})\s*MiB", _smi(machine))]
    if not totals:
        return None
    evidence = f"{totals[0]} MiB on card 0"
    if wanted.weight_bytes > totals[0] << 20:
        need = f"{wanted.weight_bytes / 2**20:.0f} MiB of weights"
        return Finding("fail", f"{evidence}, {need}", "take a smaller model, or fp16 weights")
    if totals[0] != CARD_MIB:
        return Finding("warn", f"{evidence}, a P800 has {CARD_MIB}", "is the card shared (vxpu)?")
    return Finding("ok", evidence)


def _selected(machine: Machine) -> list[int]:
    text = machine.variable("XPU_VISIBLE_DEVICES") or machine.variable("CUDA_VISIBLE_DEVICES") or ""
    return [int(part) for part in text.split(",") if part.strip().isdecimal()]


def topology(machine: Machine, wanted: Wanted) -> Finding | None:
    """Cards of one wing are linked all to all; across wings a card has one link."""
    count = len(_cards(machine))
    chosen = _selected(machine) or list(range(count))
    missing = [number for number in chosen if number >= count]
    if missing:
        return Finding(
            "fail", f"visible devices name card {missing[0]} of {count}", f"use 0 to {count - 1}"
        )
    if 1 < len(chosen) <= 4 and not any(set(chosen) <= wing for wing in WINGS):
        return Finding(
            "warn",
            f"cards {', '.join(map(str, chosen))} are of both wings",
            "choose within 0-3 or within 4-7",
        )
    return Finding("ok", f"{len(chosen)} of {count} cards in use") if count else None


def variables(machine: Machine, wanted: Wanted) -> Finding:
    """What public recipes set, or warn of."""
    if machine.variable("XPU_DUMMY_EVENT"):
        return Finding(
            "warn", "XPU_DUMMY_EVENT is set: events do not wait", "unset XPU_DUMMY_EVENT"
        )
    xpu, cuda = (machine.variable(f"{n}_VISIBLE_DEVICES") for n in ("XPU", "CUDA"))
    if xpu is not None and cuda is not None and xpu != cuda:
        return Finding(
            "warn",
            f"XPU_VISIBLE_DEVICES={xpu} and CUDA_VISIBLE_DEVICES={cuda} differ",
            "set both alike, or one",
        )
    if xpu is not None:
        return Finding(
            "warn",
            f"XPU_VISIBLE_DEVICES={xpu}: some stacks lose card-to-card copies or fail to import",
            "unset it where all cards may be used",
        )
    if machine.variable("XPU_EVENT_KL3_ENABLE") != "1":
        return Finding(
            "note",
            "XPU_EVENT_KL3_ENABLE is not 1: times of events are 0",
            "export XPU_EVENT_KL3_ENABLE=1 to measure kernels",
        )
    return Finding("ok", "XPU_EVENT_KL3_ENABLE=1")


def masks(machine: Machine, wanted: Wanted) -> Finding | None:
    """Our kernels do not rely on it."""
    found = machine.names("/proc/kunlun/dev*/dma_excp_mask")
    if not found:
        return None
    off = [path for path in found if (machine.read(path) or "").strip() != "1"]
    if off:
        return Finding(
            "note",
            f"{off[0]} is not 1: masked block copies outside an allocation fault",
            f"with XRE above {MASK_DRIVER}: echo 1 > {off[0]}",
        )
    return Finding("ok", "masked block copies may pass over the end of an allocation")


def host(machine: Machine, wanted: Wanted) -> Finding | None:
    """One published list of hosts; others may well do."""
    name = (machine.output("uname", "-m") or "").strip()
    if name not in ("x86_64", "aarch64", ""):
        return Finding("fail", f"a host of {name}", "the vendor has x86-64 and aarch64 libraries")
    match = re.search(r"model name\s*:\s*(.+)", machine.read("/proc/cpuinfo") or "")
    if match is None:
        return None
    evidence = f"host CPU {match[1].strip()}"
    if not any(part in match[1] for part in TESTED_HOSTS):
        return Finding("note", f"{evidence}: not on the published list of tested hosts")
    return Finding("ok", evidence)


CHECKS = (
    Check("device nodes", nodes),
    Check("model", model, needs="device nodes"),
    Check("driver", driver, needs="device nodes"),
    Check("firmware", firmware, needs="device nodes"),
    Check("runtime library", library, needs="device nodes"),
    Check("libstdc++", standard_library, needs="device nodes"),
    Check("memory", memory, needs="device nodes"),
    Check("topology", topology, needs="device nodes"),
    Check("variables", variables, needs="device nodes"),
    Check("DMA masks", masks, needs="device nodes"),
    Check("host", host, needs="device nodes"),
)
