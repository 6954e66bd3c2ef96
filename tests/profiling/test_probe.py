"""The probe keeps to what a user's interpreter may be: an older Python, without anything of ours."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from srifty.profiling import attached_run

FILES = sorted(attached_run._ON_PYTHON_PATH.rglob("*.py"))
LAUNCHED = [*FILES, attached_run._OVERLAY]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_3_8_could_read_it(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
    assert "from __future__ import annotations" in path.read_text()


@pytest.mark.parametrize("path", LAUNCHED, ids=lambda path: path.name)
def test_it_imports_the_standard_library_and_what_it_patches_alone(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or top in ("srifty_probe", "torch"), name


def test_a_python_without_torch_pays_next_to_nothing(tmp_path: Path) -> None:
    settings = f'{{"folder": "{tmp_path}", "until": 0, "steady_s": 0, "parent": 1}}'
    code = "import sys; print(sorted(name for name in sys.modules if 'srifty' in name or name == 'torch'))"
    environment = {"PYTHONPATH": str(attached_run._ON_PYTHON_PATH), "SRIFTY_PROBE": settings}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "['srifty_probe', 'srifty_probe.beacon']"
    assert said.stderr == ""
    assert [path.name[:8] for path in tmp_path.iterdir()] == ["process."]


def test_a_probe_that_cannot_start_does_not_stop_the_program() -> None:
    environment = {"PYTHONPATH": str(attached_run._ON_PYTHON_PATH), "SRIFTY_PROBE": "no JSON"}
    said = subprocess.run(
        [sys.executable, "-c", "print('trained')"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "trained\n"
    assert "the probe could not start" in said.stderr
