"""The commands as real processes: modules loaded, pipes, terminals, signals."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

SGLK = [sys.executable, "-m", "sglk"]
COMPILER = {
    "torch", "triton", "sympy", "transformers", "onnx", "gguf", "safetensors", "tqdm",
    "sglk.driver", "sglk.ir", "sglk.passes", "sglk.frontend", "sglk.targets.cpu.compile",
    "sglk.targets.tilec", "sglk.targets.kernels", "sglk.targets.lowering",
}  # fmt: skip
"""What serving must never load."""


@pytest.fixture(autouse=True)
def ctrl_c_reaches_children() -> Iterator[None]:
    """A background job ignores Ctrl-C, and so do its children: the tests of it would hang."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def loaded_by(code: str, *arguments: object) -> set[str]:
    """Modules in the interpreter after it ran `code`."""
    program = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_generating_loads_no_compiler(tiny_artifact: Path) -> None:
    code = (
        "import sglk\n"
        "with sglk.load(sys.argv[1]) as llm: llm.generate('a', max_tokens=1)\n"
        "with sglk.load(sys.argv[1]) as llm:\n"
        "    llm.chat([{'role': 'user', 'content': 'a'}], max_tokens=1, temperature=1.0)"
    )
    assert not COMPILER & loaded_by(code, tiny_artifact)


def test_sglk_run_loads_no_compiler(tiny_artifact: Path) -> None:
    code = "from sglk.cli import main\nmain(['run', sys.argv[1], 'a', '--max-tokens', '1'])"
    modules = loaded_by(code, tiny_artifact)
    assert "sglk.cli.run" in modules
    assert not COMPILER & modules
    assert not {"sglk.cli.compile", "importlib.metadata"} & modules


def test_importing_the_runtime_loads_nothing_else() -> None:
    modules = loaded_by("import sglk.runtime")
    assert not (COMPILER | {"numpy", "tokenizers", "jinja2", "sglk.targets"}) & modules


def test_a_reader_that_leaves_early(tiny_artifact: Path) -> None:
    """As in ``sglk show model.sglk --program | head -1``."""
    code = (
        "import sys\n"
        "from sglk.cli import main\n"
        "sys.stdin.read()\n"  # until the reader is gone
        "sys.exit(main(['show', sys.argv[1], '--program']))"
    )
    command = [sys.executable, "-c", code, str(tiny_artifact)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_output_that_is_full(tiny_artifact: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*SGLK, "show", tiny_artifact],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "sglk show: cannot write the output: No space left on device\n"


def test_errors_leave_standard_output_empty(tmp_path: Path) -> None:
    command = [*SGLK, "run", str(tmp_path / "none.sglk"), "hello"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sglk run: ") and done.stderr.count("\n") == 1


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*SGLK, *map(str, arguments)],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env=os.environ | {"TERM": "dumb"},
        )  # fmt: skip
        os.close(slave)
        self._unread = b""

    def read_until(self, wanted: bytes) -> bytes:
        """What was printed up to and with `wanted`; fails after a minute of silence."""
        while wanted not in self._unread:
            ready, _, _ = select.select([self._master], [], [], 60)
            assert ready, f"expected {wanted!r}, got {self._unread!r}"
            self._unread += os.read(self._master, 65536)
        head, _, self._unread = self._unread.partition(wanted)
        return head + wanted

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        os.close(self._master)
        self.process.kill()
        self.process.wait()


def interrupted(process: subprocess.Popen[Any]) -> int:
    """Press Ctrl-C until the process ends; returns its status.

    Python may get a signal just before it blocks in a read, and then sees it after the next key:
    a person presses again.
    """
    for _ in range(30):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(2)
    raise AssertionError("expected the process to end on Ctrl-C, got none of 30 heard")


def test_a_chat_on_a_terminal(tiny_artifact: Path) -> None:
    with Terminal("run", tiny_artifact, "--max-tokens", 4, "--stats") as terminal:
        terminal.read_until(b"Ctrl-D ends the chat.")
        terminal.read_until(b"> ")
        terminal.type(b"a question of more than a page of 32 tokens\n")
        assert b"cached" not in terminal.read_until(b"4 tokens")
        terminal.read_until(b"> ")
        terminal.type(b"another\n")
        terminal.read_until(b"more cached")  # the first question begins the second prompt
        terminal.read_until(b"> ")
        terminal.type(b"\x04")
        assert terminal.process.wait(60) == 0


def test_ctrl_c_at_the_prompt_ends_the_chat(tiny_artifact: Path) -> None:
    with Terminal("run", tiny_artifact) as terminal:
        terminal.read_until(b"> ")
        assert interrupted(terminal.process) == 0


def test_ctrl_c_ends_a_piped_chat(tiny_artifact: Path) -> None:
    command = [*SGLK, "run", tiny_artifact, "--max-tokens", "2", "--stats"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert "2 tokens" in process.stderr.readline()  # it waits for the next line now
        assert interrupted(process) == 130
        assert process.stderr.read() == "\nsglk run: interrupted\n"


WAITING_COMPILE = """
import signal, sys
import sglk.frontend
from sglk.cli.compile import main

def load_model(*args, **kwargs):
    print("capturing", flush=True)
    signal.pause()

sglk.frontend.load_model = load_model
sys.exit(main(["model.gguf", "-o", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
def test_a_signal_during_a_compile_leaves_nothing(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    command = [sys.executable, "-c", WAITING_COMPILE, str(tmp_path / "x.sglk")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"capturing\n"
        process.send_signal(number)
        assert process.wait(60) == status
    assert list(tmp_path.iterdir()) == []
