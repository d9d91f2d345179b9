"""The player itself: sanitizers, malformed plans, and its arithmetic against Python's."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglk
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sglk.errors import DeviceError
from sglk.targets.artifact import Bucket
from sglk.targets.cpu.device.library import Library
from sglk.targets.cpu.device.plan_code import PLAN_VERSION, PlanCode, encode
from sglk.targets.dim_code import parse

NATIVE = Path(sglk.__file__).parent / "targets" / "cpu" / "native"
DRIVER = Path(__file__).parent / "race_driver.cpp"


@pytest.fixture
def library(library_bytes: bytes) -> Iterator[Library]:
    library = Library("test", library_bytes)
    yield library
    library.close()


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    command = [compiler, "-std=c++17", "-O0", f"-fsanitize={sanitizer}", f"-I{NATIVE}"]
    command += [str(DRIVER), str(NATIVE / "player.cpp"), "-pthread", "-o", str(tmp_path / "race")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode and "cannot find" in built.stderr:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer")
    assert built.returncode == 0, built.stderr
    result = subprocess.run([tmp_path / "race"], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in result.stderr:
        pytest.skip("the thread sanitizer does not know this kernel's memory layout")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_player_needs_no_cpp_runtime(tmp_path: Path, compiler: str) -> None:
    """It links with the C library alone, as `-nostdlib++` and the ziglang compiler demand."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    link = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti"]
    link += ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-nodefaultlibs", "-Wl,-z,defs"]
    link += [
        str(NATIVE / "player.cpp"),
        "-lc",
        "-lm",
        "-lpthread",
        "-lgcc",
        "-o",
        str(tmp_path / "a.so"),
    ]
    result = subprocess.run(link, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def _words(toy: Any) -> PlanCode:
    buffers = [
        toy.buffer("input", "x", "i32", "tokens"),
        toy.buffer("output", "y", "i32", "tokens"),
        toy.buffer("temp", "t", "i32", "tokens", offset="64"),
    ]
    calls = (
        toy.call("reverse", "tokens", "buffer x", "buffer t", "i32 tokens"),
        toy.call("reverse", "min(tokens, 9)", "buffer t", "buffer y", "i64 tokens"),
        toy.call("add", "1", "buffer x", "weight w", "buffer t", "i32 0", "f32 1.5"),
    )
    program = toy.program(
        "p", "tokens", buffers, Bucket(4, calls[:1]), Bucket(None, calls), arena="64 + tokens * 4"
    )
    return encode(program)


@settings(
    max_examples=250,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_malformed_plans_are_refused(data: st.DataObject, toy: Any, library: Library) -> None:
    """Any words either make a plan or are refused with a message; nothing is executed here."""
    code = _words(toy)
    words = code.words.copy()
    value = st.one_of(st.integers(-3, 12), st.integers(-(2**63), 2**63 - 1))
    for _ in range(data.draw(st.integers(1, 3))):
        words[data.draw(st.integers(0, len(words) - 1))] = data.draw(value)
    words = words[: data.draw(st.integers(1, len(words)))] if data.draw(st.booleans()) else words
    damaged = dataclasses.replace(code, words=np.ascontiguousarray(words))
    try:
        library.create_plan(damaged)
    except DeviceError as error:
        assert str(error).startswith("test: plan: ")


def test_plan_version_is_in_the_first_word(toy: Any, library: Library) -> None:
    code = _words(toy)
    assert code.words[0] == PLAN_VERSION
    code.words[0] += 1
    with pytest.raises(DeviceError, match="expected the plan version of this library"):
        library.create_plan(code)


def test_plan_code_names_its_parts(toy: Any) -> None:
    code = _words(toy)
    assert code.bases == (("arena", ""), ("input", "x"), ("output", "y"), ("weight", "w"))
    assert code.kernels == ("reverse", "add")
    assert code.symbols == ("tokens", "num_pages")
    assert code.own_symbols == ("tokens",) and code.weights == ("w",)
    assert code.calls == (
        (("reverse", "reverse"),),
        (("reverse", "reverse"),) * 2 + (("add", "add"),),
    )


BIG = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-9, 9))
OPERATIONS = ["{} + {}", "{} - {}", "{} * {}", "{} // {}", "{} % {}"]
OPERATIONS += [name + "({}, {})" for name in ("min", "max", "cdiv", "align")]


TEXTS = [form.format("a", "b") for form in OPERATIONS] + ["a * 2 - b // 3", "-a"]


@pytest.fixture(scope="module")
def calculator(make_toy: Any) -> Iterator[Any]:
    """Programs ``p0``, ``p1``... that store the value of each of `TEXTS`."""
    toy = make_toy("calculator")
    programs = [
        toy.program(
            f"p{index}",
            "a b",
            [toy.buffer("output", "y", "i32", "2")],
            Bucket(None, (toy.call("store", "1", "buffer y", f"i64 {text}"),)),
        )
        for index, text in enumerate(TEXTS)
    ]
    with toy.load(*programs, num_threads=1) as executable:
        yield executable


def _stored(executable: Any, entry: str, values: list[int]) -> int | None:
    bound = executable._programs[entry]
    view = bound.output(bound.outputs["y"], (2,))
    try:
        bound.run(executable._pool, values)
    except DeviceError as error:
        assert "overflows or divides by zero" in str(error)
        return None
    return int(view.view(np.int64)[0])


def _expected(text: str, a: int, b: int) -> int | None:
    try:
        return parse(text, ["a", "b"]).evaluate({"a": a, "b": b})
    except DeviceError:
        return None


@settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(index=st.integers(0, len(TEXTS) - 1), a=BIG, b=BIG)
@example(index=3, a=-(2**63), b=-1)
@example(index=4, a=-(2**63), b=-1)
@example(index=7, a=-(2**63), b=-1)
@example(index=8, a=2**63 - 1, b=64)
@example(index=8, a=5, b=0)
def test_player_computes_sizes_as_python_does(calculator: Any, index: int, a: int, b: int) -> None:
    assert _stored(calculator, f"p{index}", [a, b]) == _expected(TEXTS[index], a, b)
