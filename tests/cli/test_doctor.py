"""`sglk doctor` on recorded machines: a healthy one of each chip, and one fault for each check."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sglk.cli.doctor import OURS, _wanted, checks_of
from sglk.targets.artifact import FORMAT, ArtifactWriter
from sglk.targets.machine import RecordedMachine, Recorder, ThisMachine, Wanted, examine

RECORDED = Path(__file__).parent / "recorded"
Run = Callable[..., tuple[int, str, str]]
CPUINFO = "processor\t: 0\nflags\t\t: fpu sse4_2\n"
SMI = "output nvidia-smi --query-gpu=" + ",".join(
    (
        "index", "name", "driver_version", "compute_cap", "memory.total", "memory.free",
        "mig.mode.current", "ecc.errors.uncorrected.volatile.total",
    )
) + " --format=csv,noheader,nounits"  # fmt: skip
LIBSTDCXX = "output grep -ao GLIBCXX_3[.][0-9.]* /lib/x86_64-linux-gnu/libstdc++.so.6"
RUNTIME = "numbers libxpurt.so xpu_get_runtime_version 2"


def healthy(target: str) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((RECORDED / f"{target}.json").read_text())
    return answers


@pytest.mark.parametrize("target", OURS)
def test_a_healthy_machine_is_ready(target: str, run_cli: Run) -> None:
    status, out, _ = run_cli("doctor", "--target", target, "--replay", RECORDED / f"{target}.json")
    assert status == 0, out
    assert out.endswith(f"{target}: ready\n")
    assert "WARN" not in out and "note" not in out
    asked = {check.name for check in checks_of(target)}
    shown = {name for name in asked if f"ok   {name}" in out}
    assert asked - shown <= {"MIG", "memory errors", "visible devices"}, "silent when all is well"


def gpu(**changes: str) -> str:
    fields = {
        "index": "0", "name": "NVIDIA H200", "driver": "570.86.15", "cap": "9.0",
        "total": "143771", "free": "143200", "mig": "Disabled", "ecc": "0",
    }  # fmt: skip
    return ", ".join({**fields, **changes}.values()) + "\n"


XPU_SMI = "output xpu-smi"
FAULTS: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("cpu", "instruction set", {"read /proc/cpuinfo": CPUINFO}, "warn", "generic: scalar code"),
    ("cpu", "AMX", {"system_call 158 4131 18": -1}, "warn", "Linux refuses its tile registers"),
    ("cpu", "cores", {"read /sys/fs/cgroup/cpu.max": "50000 100000"}, "warn", "a quota of 0.5"),
    ("cpu", "memory", {"read /proc/meminfo": None}, "warn", "cannot read /proc/meminfo"),
    (
        "cpu", "huge pages",
        {"read /sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"},
        "warn", "huge pages are off",
    ),
    (
        "cpu", "frequency",
        {"read /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"},
        "warn", "governor powersave",
    ),
    ("cpu", "compiler", {"output c++ --version": None}, "warn", "no C++ compiler"),
    ("cuda", "device nodes", {"names /dev/nvidia[0-9]*": []}, "fail", "no NVIDIA GPU"),
    ("cuda", "device nodes", {"may_use /dev/nvidia1": False}, "fail", "permission for"),
    (
        "cuda", "driver library", {"numbers libcuda.so.1 cuDriverGetVersion 1": None},
        "fail", "cannot load libcuda.so.1",
    ),
    (
        "cuda", "driver library", {"numbers libcuda.so.1 cuDriverGetVersion 1": [11080]},
        "fail", "supports CUDA 11.8, 12.0 is needed",
    ),
    ("cuda", "nvidia-smi", {SMI: None}, "warn", "nvidia-smi gives no GPU"),
    ("cuda", "visible devices", {"variable CUDA_VISIBLE_DEVICES": ""}, "fail", "hides every GPU"),
    (
        "cuda", "visible devices", {"variable CUDA_VISIBLE_DEVICES": "0,4"},
        "fail", "names 4 of 2 GPUs",
    ),
    ("cuda", "MIG", {SMI: gpu(mig="Enabled")}, "warn", "MIG is on for GPU 0"),
    ("cuda", "memory", {SMI: gpu(free="900")}, "warn", "900 of 143771 MiB are free"),
    ("cuda", "memory errors", {SMI: gpu(ecc="3")}, "fail", "3 uncorrected memory errors"),
    ("cuda", "bindings", {"package cuda-bindings": None}, "fail", "cuda-bindings is missing"),
    (
        "kunlun", "device nodes", {"names /dev/xpu[0-9]*": []},
        "fail", "the PCI bus has 8: no driver",
    ),
    ("kunlun", "device nodes", {"names /dev/xpuctrl": []}, "fail", "8 cards, no /dev/xpuctrl"),
    ("kunlun", "device nodes", {"may_use /dev/xpu3": False}, "fail", "permission for /dev/xpu3"),
    (
        "kunlun", "model", {"read /sys/bus/pci/devices/0000:53:00.0/device": "0x1234"},
        "warn", "PCI device 0x1234: expected a P800",
    ),
    (
        "kunlun", "driver", {XPU_SMI: "Driver Version: 5.0.21.10"},
        "fail", "driver 5.0.21.10, 5.0.21.16 is needed",
    ),
    (
        "kunlun", "driver", {XPU_SMI: "Driver Version: 5.0.21.21"},
        "warn", "others are known to run with 5.0.21.26",
    ),
    ("kunlun", "driver", {XPU_SMI: None}, "warn", "the driver's version is not known"),
    (
        "kunlun", "firmware", {XPU_SMI: "Driver Version: 5.0.21.26 Firmware Version: 1.40"},
        "warn", "firmware 1.40; FastDeploy asks for 1.48",
    ),
    ("kunlun", "runtime library", {RUNTIME: None}, "fail", "cannot load libxpurt.so"),
    (
        "kunlun", "runtime library",
        {RUNTIME: None, "names /usr/local/xpu/so/libxpurt.so*": ["/usr/local/xpu/so/libxpurt.so"]},
        "fail", "the loader does not find it",
    ),
    ("kunlun", "libstdc++", {LIBSTDCXX: "GLIBCXX_3.4.29\n"}, "warn", "has no GLIBCXX_3.4.30"),
    (
        "kunlun", "memory", {XPU_SMI: "Driver Version: 5.0.21.26 | 9 / 24576 MiB |"},
        "warn", "24576 MiB on card 0, a P800 has 98304",
    ),
    (
        "kunlun", "topology", {"variable XPU_VISIBLE_DEVICES": "2,3,4,5"},
        "warn", "cards 2, 3, 4, 5 are of both wings",
    ),
    (
        "kunlun", "topology", {"variable CUDA_VISIBLE_DEVICES": "8"},
        "fail", "visible devices name card 8 of 8",
    ),
    (
        "kunlun", "variables",
        {"variable XPU_VISIBLE_DEVICES": "0", "variable CUDA_VISIBLE_DEVICES": "1"},
        "warn", "differ",
    ),
    ("kunlun", "variables", {"variable XPU_DUMMY_EVENT": "1"}, "warn", "events do not wait"),
    ("kunlun", "variables", {"variable XPU_EVENT_KL3_ENABLE": None}, "note", "events are 0"),
    (
        "kunlun", "DMA masks", {"read /proc/kunlun/dev0/dma_excp_mask": "0"},
        "note", "masked block copies outside an allocation fault",
    ),
    ("kunlun", "host", {"output uname -m": "riscv64"}, "fail", "a host of riscv64"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "check", "changes", "verdict", "evidence"),
    FAULTS,
    ids=[f"{fault[0]}: {fault[4]}" for fault in FAULTS],
)
def test_one_fault_has_one_finding(
    target: str, check: str, changes: dict[str, Any], verdict: str, evidence: str
) -> None:
    machine = RecordedMachine({**healthy(target), **changes})
    found = [f for name, f in examine(machine, checks_of(target), Wanted()) if name == check]
    assert len(found) == 1
    assert found[0].verdict == verdict and evidence in found[0].evidence
    assert found[0].remedy or verdict == "note"


@pytest.mark.parametrize("target", OURS)
def test_every_check_has_a_failing_case(target: str) -> None:
    tried = {fault[1] for fault in FAULTS if fault[0] == target} | {"compute capability"}
    assert {check.name for check in checks_of(target)} <= tried


@pytest.mark.parametrize(
    ("target", "isas", "size", "name", "evidence"),
    [
        ("cuda", ("sm_80",), 0, "compute capability", "the artifact has sm_80"),
        ("cuda", ("sm_90",), 200 << 30, "memory", "204800 MiB of weights"),
        ("cpu", ("aarch64",), 0, "instruction set", "the artifact has aarch64"),
        ("cpu", ("x86_64_v3",), 99 << 30, "memory", "99.0 GiB of weights"),
        ("kunlun", ("xpu3",), 99 << 30, "memory", "101376 MiB of weights"),
    ],
)
def test_an_artifact_that_does_not_fit_is_named(
    target: str, isas: tuple[str, ...], size: int, name: str, evidence: str
) -> None:
    machine = RecordedMachine(healthy(target))
    found = dict(examine(machine, checks_of(target), Wanted(isas, size)))
    assert found[name].verdict == "fail" and evidence in found[name].evidence
    assert found[name].remedy


def test_no_kunlun_is_said_plainly(run_cli: Run, tmp_path: Path) -> None:
    record = tmp_path / "bare.json"
    record.write_text("{}")
    status, out, _ = run_cli("doctor", "--target", "kunlun", "--replay", record)
    assert status == 1
    first, remedy, last = out.splitlines()
    assert first.startswith("FAIL device nodes  no Kunlun card: expected /dev/xpu0 and up")
    assert "run --device emulator here" in remedy
    assert last == "kunlun: not ready"


def test_this_machine_is_recorded_and_replayed(run_cli: Run, tmp_path: Path) -> None:
    record = tmp_path / "here.json"
    status, here, _ = run_cli("doctor", "--record", record)
    assert (status, here) == run_cli("doctor", "--replay", record)[:2]
    assert "cpu: ready" in here and "instruction set" in here


def test_a_weight_with_two_names_needs_memory_once(tmp_path: Path) -> None:
    path = tmp_path / "tied.sglk"
    with ArtifactWriter(path) as writer:
        blob = writer.add_blob([bytes(1000)])
        weight = {
            "blob": blob, "bytes": 1000, "dtype": "u8", "shape": [1000], "layout": "row",
            "sections": {}, "sha256": blob.rpartition("/")[2],
        }  # fmt: skip
        writer.finish({
            "format": list(FORMAT), "features": [], "producer": "test",
            "model": {"name": "tied", "architecture": "tied"},
            "target": {"name": "cpu", "variants": []},
            "programs": {}, "weights": {"embedding": weight, "head": weight},
        })  # fmt: skip
    _, wanted = _wanted(Namespace(artifact=str(path), target=None))
    assert wanted.weight_bytes == 1000


def test_an_artifact_names_its_target(run_cli: Run, tiny_artifact: Path) -> None:
    status, out, _ = run_cli("doctor", tiny_artifact, "--json")
    report = json.loads(out)
    assert status == 0 and report["ready"] and report["target"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--target", "abacus"], "--target: expected one of cpu"),
        (["--replay", "no-such-file"], "no-such-file"),
    ],
)
def test_wrong_options(refusal: Callable[..., str], arguments: list[str], sentence: str) -> None:
    assert sentence in refusal("doctor", *arguments)


def test_tools_that_hang_or_fail_are_no_answer() -> None:
    machine = ThisMachine()
    assert machine.output("sh", "-c", "exit 3") == ""
    assert machine.output("no-such-tool") is None
    assert machine.numbers("libno-such.so", "f", 1) is None
    assert machine.numbers("libc.so.6", "no_such_function", 1) == []
    assert Recorder(machine).package("numpy")
