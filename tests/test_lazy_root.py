"""``import sglk`` loads nothing else, and still offers its names."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sglk


@pytest.mark.parametrize("name", sglk.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(sglk, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(sglk, "nothing")  # noqa: B009  (a type checker would refuse the dotted form)


def test_importing_the_root_loads_no_other_module_of_ours() -> None:
    code = "import sys, sglk; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    ours = [m for m in loaded if m.startswith("sglk")]
    assert ours == ["sglk"]
    assert not {"sympy", "numpy", "torch"} & set(loaded)


def test_the_version_is_a_literal_that_needs_no_import() -> None:
    from importlib.metadata import version

    assert version("sglk") == sglk.__version__
