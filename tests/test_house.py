"""The house stands: four floors, rooms that do not know one another, heavy guests late and in one room."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import srifty

SOURCE = Path(srifty.__file__).parent
ROOMS = {"profiling", "predicting", "planning", "running", "clouds", "reporting"}
GROUND = {"records", "errors"}
GUESTS = {
    "torch": ("profiling",),
    "torchvision": ("profiling",),
    "xgboost": ("predicting",),
    "scipy": ("predicting",),
    "highspy": ("planning",),
    "boto3": ("clouds",),
    "plotly": ("reporting",),
    "rich": ("reporting", "cli"),
    "typer": ("cli",),
}
FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "srifty" else {node.module or ""}
    return found


def imports_at_once(path: Path) -> set[str]:
    """Modules that importing the file imports, not those inside functions or for type checkers only."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def floor_of(module: str) -> str:
    """ "srifty.clouds.catalog" -> "clouds"; "" for what is not ours."""
    ours, _, rest = module.partition(".")
    return rest.split(".")[0] if ours == "srifty" else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_what_its_floor_may(path):
    floor = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    known = {floor_of(module) for module in imports(path)} - {""}
    allowed = {
        "records": GROUND,
        "errors": GROUND,
        "verbs": GROUND | ROOMS,
        "cli": GROUND | {"verbs", "cli", "reporting", "__version__"},
        "__init__": GROUND | {"verbs", "profiling"},  # what stands inside a user's loop is no verb
        "__main__": {"cli"},
    }.get(floor, GROUND | {floor})
    assert known <= allowed, f"{floor} may not import {known - allowed}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_heavy_guest_stays_in_its_room(path):
    floor = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for guest in {module.split(".")[0] for module in imports(path)} & set(GUESTS):
        assert floor in GUESTS[guest], f"{guest} belongs into {GUESTS[guest]}, not into {floor}"


def test_xgboost_is_met_in_one_file_and_late():
    met = [path for path in FILES if "xgboost" in {module.split(".")[0] for module in imports(path)}]
    assert [path.name for path in met] == ["boosted_trees.py"]
    assert "xgboost" not in imports_at_once(met[0])


def test_rooms_have_something_to_do():
    for room in SOURCE.iterdir():
        if room.is_dir() and room.name in ROOMS:
            assert len([path for path in room.glob("*.py") if path.name != "__init__.py"]) > 0, room.name


def test_verbs_import_rooms_only_as_they_enter_them():
    assert not {floor_of(m) for m in imports_at_once(SOURCE / "verbs.py")} & ROOMS
    at_top = {
        (node.module or "")
        for node in ast.parse((SOURCE / "verbs.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
    }
    assert not {floor_of(module) for module in at_top} & ROOMS


@pytest.mark.parametrize("heavy", ["torch", "numpy", "pydantic", "rich", "typer"])
def test_import_srifty_brings_no_guest(heavy):
    code = f"import sys, srifty; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_plan_needs_no_torch():
    code = (
        "import sys, srifty; srifty.plan(srifty.sample_profiles('resnet50'), samples=10**6, batch=256);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_saved_model_tells_without_xgboost(tmp_path):
    pytest.importorskip("xgboost", reason="fitting needs xgboost-cpu")
    table = tmp_path / "exchanges.csv"
    heading = (
        "instance_types,node_count,gpus_per_node,backend,link_bytes_per_s,message_bytes,duration_s,repeat\n"
    )
    table.write_text(
        heading + "p3.2xlarge,4,1,nccl,1.25e9,1048576,0.0015,0\np3.2xlarge,4,1,nccl,1.25e9,8,3e-4,0\n"
    )
    srifty.write(srifty.fit_network(table), tmp_path / "model.json")
    code = (
        "import sys, srifty; profiles = srifty.sample_profiles('resnet50');"
        f"srifty.predict(profiles, '4xp3.2xlarge', batch=256, model={str(tmp_path / 'model.json')!r});"
        "sys.exit(any(guest in sys.modules for guest in ('xgboost', 'scipy', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_face_is_what_it_says():
    assert [name for name in srifty.__all__ if not hasattr(srifty, name)] == []
    assert set(srifty.__all__) <= set(dir(srifty))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = srifty.nonsense


def test_the_oldest_versions_tested_are_the_lower_bounds():
    root = SOURCE.parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    assert set(project["optional-dependencies"]["fit"]) <= set(asked), "what fits a model is tested"
    bounds = dict(re.match(r"([\w-]+)>=([\d.]+)", each).groups() for each in asked if ">=" in each)
    tested = dict(
        re.findall(r"^([\w-]+)==([\d.]+)$", (root / "constraints-oldest.txt").read_text(), re.MULTILINE)
    )
    for name, version in tested.items():
        assert version.removesuffix(".0") == bounds[name].removesuffix(".0"), name
    assert {re.split("[<>=]", each)[0] for each in project["dependencies"]} <= set(tested)
