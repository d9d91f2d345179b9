"""What one kernel call costs beyond the kernel: a step of many tiny calls, by number of threads.

    python bench/player_overhead.py [--calls 100] [--steps 1000] [--threads 1,2]

Compiles the player with a kernel that does nothing and one that counts (100 steps per program), and
prints, per number of threads, the median and the best nanoseconds per call, and the microseconds of
a whole step with one call (the cost of the native call itself, workers awake). Keep the machine
idle: threads that share a core cannot be faster than one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import sglk
from sglk.targets.artifact import Arg, Bucket, Buffer, Call, Program
from sglk.targets.cpu.device.bound_program import BoundProgram
from sglk.targets.cpu.device.library import Library
from sglk.targets.cpu.device.memory import Memory
from sglk.targets.cpu.device.plan_code import encode

NATIVE = Path(sglk.__file__).parent / "targets" / "cpu" / "native"
KERNEL = """
#include <stdint.h>
extern "C" void nothing(const int64_t*, const int32_t*, int64_t, int64_t) {}
extern "C" void busy(const int64_t*, const int32_t*, int64_t begin, int64_t end) {
  volatile int64_t counter = 0;
  for (int64_t i = 0; i < 100 * (end - begin); i++) counter = counter + 1;
}
"""


def compile_library(folder: Path) -> bytes:
    """The player and the empty kernel."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise SystemExit("player_overhead: needs a C++ compiler (set CXX)")
    (folder / "kernel.cpp").write_text(KERNEL)
    sources = [str(folder / "kernel.cpp"), str(NATIVE / "player.cpp")]
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fno-exceptions", "-fno-rtti"]
    subprocess.run([compiler, *flags, *sources, "-o", str(folder / "k.so")], check=True)
    return (folder / "k.so").read_bytes()


def make_program(kernel: str, num_calls: int) -> Program:
    """Calls with four arguments, the grid a dim: what a step looks like."""
    args = (Arg("buffer", "t"), Arg("buffer", "t", "4"), Arg("i32", "n"), Arg("f32", "1.5"))
    call = Call(kernel, ("n", "1", "1"), args)
    temp = Buffer("t", "f32", ("n",), "temp", "0", "n * 4")
    bucket = Bucket(None, (call,) * num_calls)
    return Program("bench", ("n",), (), (), (temp,), (), "n * 4", (bucket,))


def measure(
    library: Library, pool: int, kernel: str, num_calls: int, steps: int, grid: int
) -> list[float]:
    """Seconds of each step."""
    program = make_program(kernel, num_calls)
    bound = BoundProgram(encode(program), library, Memory("arena"), {}, 1)
    times = []
    for _ in range(steps + 5):
        start = time.perf_counter()
        bound.run(pool, [grid])
        times.append(time.perf_counter() - start)
    return times[5:]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="nanoseconds per kernel call of the player")
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", default="1,2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = compile_library(Path(folder))
    print("threads  kernel   programs  ns/call median  ns/call best  us/step of one call")
    for threads in map(int, options.threads.split(",")):
        library = Library("bench", data)
        pool = library.create_pool(threads)
        for kernel, grid in [("nothing", 1), ("nothing", 64), ("busy", 16), ("busy", 256)]:
            step = measure(library, pool, kernel, options.calls, options.steps, grid)
            single = measure(library, pool, kernel, 1, options.steps, grid)
            median = statistics.median(step) / options.calls * 1e9
            best = min(step) / options.calls * 1e9
            alone = statistics.median(single) * 1e6
            print(f"{threads:7}  {kernel:7}  {grid:8}  {median:14.0f}  {best:12.0f}  {alone:19.1f}")
        library.close()


if __name__ == "__main__":
    main()
