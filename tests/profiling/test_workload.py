"""Workloads: what is accepted, and how each kind of failure is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from srifty.errors import InvalidInput, WorkloadFailed
from srifty.profiling.profiler import profile
from srifty.profiling.user_code import importing_from
from srifty.profiling.workload import Workload, load_workload
from srifty.records import Job

GOOD = """
import torch
from torch import nn

def make_batch(batch):
    return torch.randn(batch, 8)

def loss(model, data):
    return model(data).square().mean()

def make():
    model = nn.Linear(8, 8)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), make_batch, loss
"""


MODEL = "model = nn.Linear(8, 8)"
OPTIMIZER = "torch.optim.SGD(model.parameters(), lr=0.01)"
RETURN = f"return model, {OPTIMIZER}, make_batch, loss"


def _write(folder: Path, text: str, name: str = "workload.py") -> None:
    (folder / name).write_text(text, encoding="utf-8")


def _load(folder: Path, workload: str = "workload:make") -> Workload:
    with importing_from(folder.resolve()):
        return load_workload(workload, folder.resolve())


def _profile(folder: Path, **fields: object) -> object:
    job = Job.model_validate({"name": "a", "workload": "workload:make", "batches": (2, 4), **fields})
    return profile(job, folder=folder, device="cpu", seconds_per_batch=0.01)


RETURNED = {
    "a tuple": "return model, optimizer, make_batch, loss",
    "a list": "return [model, optimizer, make_batch, loss]",
    "a mapping": "return dict(model=model, optimizer=optimizer, make_batch=make_batch, loss=loss)",
    "an object": "from types import SimpleNamespace as O\n"
    "    return O(model=model, optimizer=optimizer, make_batch=make_batch, loss=loss)",
}
RETURNED_WITH_LOADER = {
    "a tuple": "return model, optimizer, make_batch, loss, loader",
    "a mapping": "return dict(model=model, optimizer=optimizer, make_batch=make_batch, loss=loss, loader=loader)",
    "an object": "from types import SimpleNamespace as O\n"
    "    return O(model=model, optimizer=optimizer, make_batch=make_batch, loss=loss, loader=loader)",
}


@pytest.mark.parametrize("returned", RETURNED.values(), ids=RETURNED.keys())
def test_an_object_a_mapping_or_four_values_are_a_workload(tmp_path: Path, returned: str) -> None:
    text = GOOD.replace(
        "return model, torch.optim.SGD(model.parameters(), lr=0.01), make_batch, loss",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n    " + returned,
    )
    _write(tmp_path, text)
    workload = _load(tmp_path)
    assert isinstance(workload.model, nn.Linear)
    assert workload.data(3, torch.device("cpu")).shape == (3, 8)


@pytest.mark.parametrize("returned", RETURNED_WITH_LOADER.values(), ids=RETURNED_WITH_LOADER.keys())
def test_a_loader_may_be_among_them(tmp_path: Path, returned: str) -> None:
    made = (
        "optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.01), lambda batch: [make_batch(batch)]"
    )
    _write(tmp_path, GOOD.replace(RETURN, f"{made}\n    {returned}"))
    loader = _load(tmp_path).loader
    assert loader is not None
    assert [data.shape for data in loader(3)] == [(3, 8)]


def test_a_workload_in_a_package_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    _write(tmp_path / "pack", "")
    _write(tmp_path / "pack", "from pack.workload import *\nfrom near import SIZE\n", "train.py")
    _write(tmp_path / "pack", "", "__init__.py")
    _write(tmp_path / "pack", GOOD)
    _write(tmp_path, "SIZE = 8", "near.py")
    assert isinstance(_load(tmp_path, "pack.train:make").model, nn.Linear)


def test_importing_leaves_path_modules_and_folder_as_they_were(tmp_path: Path) -> None:
    _write(tmp_path, "import near\n" + GOOD)
    _write(tmp_path, "", "near.py")
    path, quiet = list(sys.path), sys.dont_write_bytecode
    _load(tmp_path)
    assert sys.path == path
    assert not {"workload", "near"} & set(sys.modules)
    assert sys.dont_write_bytecode == quiet
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["near.py", "workload.py"]


def test_two_jobs_may_both_have_a_module_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = type(sys)("workload")
    monkeypatch.setitem(sys.modules, "workload", outer)
    for name, width in (("one", 8), ("two", 16)):
        (tmp_path / name).mkdir()
        _write(tmp_path / name, GOOD.replace("nn.Linear(8, 8)", f"nn.Linear(8, {width})"))
        assert _load(tmp_path / name).model.out_features == width
    assert sys.modules["workload"] is outer


def test_what_the_folder_holds_below_it_stays_imported(tmp_path: Path) -> None:
    # A virtual environment often lies in the folder of the job, and its modules must not be imported twice.
    site = tmp_path / "venv" / "site-packages"
    site.mkdir(parents=True)
    _write(site, "", "installed_below.py")
    _write(tmp_path, f"import sys\nsys.path.append({str(site)!r})\nimport installed_below\n" + GOOD)
    _load(tmp_path)
    assert sys.modules.pop("installed_below")


def test_data_of_any_nesting_is_moved(workload_of: Callable[..., Workload]) -> None:
    class Pair(NamedTuple):
        first: torch.Tensor
        second: list[torch.Tensor]

    made = {"pair": Pair(torch.ones(2), [torch.ones(3)]), "text": "as it is", "none": None}
    workload = workload_of(nn.Linear(8, 8), make_batch=lambda batch: made)
    moved = workload.data(2, torch.device("meta"))
    assert moved["pair"].first.is_meta
    assert moved["pair"].second[0].is_meta
    assert isinstance(moved["pair"], Pair)
    assert moved["text"] == "as it is"


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("workloda:make", r"no module 'workloda' in .*; nearest: 'workload'"),
        ("pack.train:make", "no module 'pack.train' in"),
        (".train:make", "'.train' is no name of a module"),
        ("workload:mak", r"no function 'mak' in .*workload\.py; nearest: 'make'"),
        ("workload:torch", "workload:torch is a module, not a function"),
    ],
)
def test_a_name_that_is_not_there_is_the_inputs_fault(tmp_path: Path, workload: str, said: str) -> None:
    _write(tmp_path, GOOD)
    with pytest.raises(InvalidInput, match=said):
        _load(tmp_path, workload)


def test_a_folder_that_is_not_there_is_the_inputs_fault(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no folder"):
        _load(tmp_path / "nowhere")


def test_a_job_without_workload_is_the_inputs_fault(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="names no workload"):
        profile(Job(name="a"), folder=tmp_path)


def test_time_to_measure_must_be_more_than_none(tmp_path: Path) -> None:
    _write(tmp_path, GOOD)
    with pytest.raises(InvalidInput, match="seconds_per_batch is 0"):
        profile(Job(name="a", workload="workload:make"), folder=tmp_path, seconds_per_batch=0)


# What is changed in the good workload, into what, what is said, and a line of the user's code in the traceback.
FAILURES = {
    "a module that is missing": (
        "import torch\n",
        "import torch, nonesuch\n",
        "No module named 'nonesuch'",
        "torch, nonesuch",
    ),
    "an import that raises": ("def make_batch", "1 / 0\ndef make_batch", "ZeroDivisionError", "1 / 0"),
    "bad syntax": ("def make_batch", "def def", "SyntaxError", "def def"),
    "a function that raises": (
        MODEL,
        "raise OSError('no data here')",
        "OSError: no data here",
        "raise OSError",
    ),
    "an exit on import": (
        "def make_batch",
        "raise SystemExit(3)\ndef make_batch",
        "exit status 3",
        "SystemExit",
    ),
    "an exit in a call": (MODEL, "import sys; sys.exit()", "exit status None", "sys.exit()"),
    "nothing returned": (RETURN, "pass", "returned None without model, optimizer, make_batch, loss", ""),
    "three values": (RETURN, f"return model, {OPTIMIZER}, loss", "returned 3 values: expected", ""),
    "a mapping with a gap": (
        RETURN,
        "return {'model': model}",
        "a dict without optimizer, make_batch, loss",
        "",
    ),
    "no model": (RETURN, RETURN.replace("model,", "'net',", 1), "returned a str as the model", ""),
    "no optimizer": (OPTIMIZER, "None", "returned None as the optimizer", ""),
    "make_batch not callable": ("make_batch, loss\n", "5, loss\n", "returned an int as make_batch", ""),
    "loss not callable": ("make_batch, loss\n", "make_batch, 'mse'\n", "returned a str as loss", ""),
    "a loader that is no function": (
        "make_batch, loss\n",
        "make_batch, loss, [torch.ones(2, 8)]\n",
        "returned a list as loader: expected a function of the batch that makes one",
        "",
    ),
    "nothing to train": (
        f"    {RETURN}",
        f"    o = {OPTIMIZER}\n    model.requires_grad_(False)\n    return model, o, make_batch, loss",
        "without trainable parameters",
        "",
    ),
    "an optimizer of another model": (
        OPTIMIZER,
        OPTIMIZER.replace("model", "nn.Linear(8, 8)"),
        "none of the model's parameters",
        "",
    ),
    "parameters without a shape": (MODEL, "model = nn.LazyLinear(8)", "have no shape yet", ""),
    "make_batch that raises": ("return torch.randn", "return torch.rnd", "make_batch(2) failed", "torch.rnd"),
    "data of the wrong shape": ("(batch, 8)", "(batch, 9)", "shapes cannot be multiplied", "model(data)"),
    "a loss that is no tensor": ("square().mean()", "square().mean().item()", "loss returned a float", ""),
    "a loss of many numbers": (".square().mean()", ".square()", "a tensor of shape (2, 8)", ""),
    "a loss without gradient": (".mean()", ".mean().detach()", "without a gradient", ""),
    "an optimizer that wants a closure": ("SGD", "LBFGS", "closure", ""),
}


@pytest.mark.parametrize(("old", "new", "said", "line"), FAILURES.values(), ids=FAILURES.keys())
def test_a_failing_workload_is_told_by_its_own_traceback(
    tmp_path: Path, old: str, new: str, said: str, line: str
) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    _write(tmp_path, text)
    with pytest.raises(WorkloadFailed) as caught:
        _profile(tmp_path)
    message, shown = str(caught.value), caught.value.workload_traceback
    assert said in message
    assert "\n" not in message
    assert "srifty" not in shown
    assert "importlib" not in shown
    if line:
        assert line in shown
        assert str(tmp_path / "workload.py") in shown


def test_an_error_with_a_cause_keeps_both_without_our_frames(tmp_path: Path) -> None:
    text = GOOD.replace(
        MODEL,
        "try:\n        1 / 0\n    except ZeroDivisionError as error:\n        raise OSError('x') from error",
    )
    _write(tmp_path, text)
    with pytest.raises(WorkloadFailed) as caught:
        _profile(tmp_path)
    assert "ZeroDivisionError" in caught.value.workload_traceback
    assert "direct cause" in caught.value.workload_traceback
    assert "srifty" not in caught.value.workload_traceback


def test_a_loss_that_is_not_a_number_is_measured_and_noted(tmp_path: Path) -> None:
    _write(tmp_path, GOOD.replace(".mean()", ".mean() * float('nan')"))
    profile = _profile(tmp_path)
    assert any("the loss was not finite" in note for note in profile.assumptions)


def test_a_model_already_in_ddp_is_measured_without_it(tmp_path: Path) -> None:
    wrapped = GOOD.replace(
        MODEL,
        "import torch.distributed as dist\n"
        "    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))",
    )
    _write(tmp_path, wrapped)
    try:
        profile = _profile(tmp_path)
        assert torch.distributed.is_initialized()  # the user's own group stays
    finally:
        torch.distributed.destroy_process_group()
    assert profile.trainable_bytes == sum(bucket.gradient_bytes for bucket in profile.buckets) == 288
    assert any("was wrapped in DistributedDataParallel" in note for note in profile.assumptions)
