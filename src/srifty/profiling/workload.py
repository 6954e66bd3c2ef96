"""Workload: the training code behind `module:function`, in parts that the profiler can time one by one."""

from __future__ import annotations

import copy
import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from srifty.errors import InvalidInput, WorkloadFailed
from srifty.profiling.user_code import lies_in, user_code

PARTS = ("model", "optimizer", "make_batch", "loss")
LOADER = "loader"
"""The part that may be left out."""
_EXPECTED = (
    f"expected an object with {', '.join(PARTS)} and perhaps {LOADER}, a mapping with these keys, or a tuple in "
    f"this order"
)


@dataclass(frozen=True)
class Workload:
    """What a training step is made of.

    Attributes:
        model: the bare model; Srifty wraps it in DistributedDataParallel itself where it has to
        optimizer: has `step()` and `zero_grad()`
        make_batch: batch [samples] -> data, any nesting of tensors, on any device
        loss: (model, data) -> scalar tensor, by way of `model(...)`
        loader: batch [samples] -> one epoch of data as `make_batch` makes them, by the loader of the real training;
            None: the wait for data is not measured
        assumptions: what was changed in order to measure
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    make_batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    loader: Callable[[int], Iterable[Any]] | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        """Parameters that get a gradient, each once, in the order of registration."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def move_to(self, device: torch.device) -> None:
        """Move the model, and what the optimizer has already stored, to the device."""
        with user_code(f"moving the model to {device}"):
            self.model.to(device)
            if hasattr(self.optimizer, "load_state_dict"):
                self.optimizer.load_state_dict(self.optimizer.state_dict())

    def data(self, batch: int, device: torch.device, *, draws: int = 1) -> Any:
        """Make a batch and move it to the device; of several draws the one with the largest tensor."""
        with user_code(f"make_batch({batch})"):
            largest = self.make_batch(batch)
            for _ in range(draws - 1):
                largest = max(largest, self.make_batch(batch), key=largest_element_count)
            return moved_to(device, largest)

    def checked_loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        """The loss, if it is one that can be propagated back. NaN can."""
        loss = self.loss(model, data)
        if not isinstance(loss, torch.Tensor):
            raise WorkloadFailed(f"loss returned {_a(loss)}: expected a tensor of one number")
        if loss.numel() != 1:
            raise WorkloadFailed(
                f"loss returned a tensor of shape {tuple(loss.shape)}: expected one number, "
                f"for example the mean over the batch"
            )
        if not loss.requires_grad:
            raise WorkloadFailed(
                "loss returned a tensor without a gradient: was it computed under no_grad, or detached?"
            )
        return loss


def load_workload(workload: str, folder: Path) -> Workload:
    """Import `module:function` and call the function. Its folder must be importable: see `importing_from`.

    Raises:
        InvalidInput: no such module in the folder, no such function in the module
        WorkloadFailed: importing or calling it raised, or what it returned is no workload
        OutOfMemory: the model alone does not fit
    """
    module_name, _, function_name = workload.partition(":")
    module = _import(module_name, folder)
    function = getattr(module, function_name, None)
    if function is None:
        functions = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
        raise InvalidInput(
            f"no function {function_name!r} in {getattr(module, '__file__', None) or module_name}"
            f"{_nearest(function_name, functions)}"
        )
    if not callable(function):
        raise InvalidInput(f"{workload} is {_a(function)}, not a function")
    with user_code(f"{workload}()"):
        parts = _parts(function(), workload)
        return _checked(*parts, workload=workload)


def _import(name: str, folder: Path) -> Any:
    if not folder.is_dir():
        raise InvalidInput(f"no folder {folder}, where module {name!r} is looked for")
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(
            f"{name!r} is no name of a module: expected for example 'train' or 'package.train'"
        )
    root = name.partition(".")[0]
    if root in sys.modules and not lies_in(folder, sys.modules[root]) and _has_module(folder, root):
        # The folder's own module comes first, as for a script; `importing_from` puts the other one back.
        for other in [loaded for loaded in sys.modules if loaded == root or loaded.startswith(f"{root}.")]:
            del sys.modules[other]
    with user_code(f"importing {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there, and something that it imports is not
    modules = [path.stem for path in folder.glob("*.py")]
    raise InvalidInput(f"no module {name!r} in {folder}{_nearest(name, modules)}")


def _has_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def _parts(made: Any, workload: str) -> tuple[Any, ...]:
    """The four parts and, where there is one, the loader."""
    if isinstance(made, Mapping):
        missing = [part for part in PARTS if part not in made]
        parts = tuple(made.get(part) for part in (*PARTS, LOADER))
    elif all(hasattr(made, part) for part in PARTS):
        missing, parts = [], tuple(getattr(made, part, None) for part in (*PARTS, LOADER))
    elif isinstance(made, tuple | list):
        if len(made) not in (len(PARTS), len(PARTS) + 1):
            raise WorkloadFailed(f"{workload}() returned {len(made)} values: {_EXPECTED}")
        missing, parts = [], tuple(made)
    else:
        missing = [part for part in PARTS if not hasattr(made, part)]
        parts = ()
    if missing:
        raise WorkloadFailed(f"{workload}() returned {_a(made)} without {', '.join(missing)}: {_EXPECTED}")
    return parts


def _checked(
    model: Any, optimizer: Any, make_batch: Any, loss: Any, loader: Any = None, *, workload: str
) -> Workload:
    assumptions = []
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
        assumptions.append("the model was wrapped in DistributedDataParallel and was measured without it")
    if not isinstance(model, nn.Module):
        raise WorkloadFailed(f"{workload}() returned {_a(model)} as the model: expected a torch.nn.Module")
    if not (callable(getattr(optimizer, "step", None)) and callable(getattr(optimizer, "zero_grad", None))):
        raise WorkloadFailed(
            f"{workload}() returned {_a(optimizer)} as the optimizer: expected step() and zero_grad()"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise WorkloadFailed(
            f"{workload}() returned LBFGS, whose step needs a closure; profile the training script as it is: "
            f"srifty profile -- python train.py"
        )
    for name, part in (("make_batch", make_batch), ("loss", loss)):
        if not callable(part):
            raise WorkloadFailed(f"{workload}() returned {_a(part)} as {name}: expected a function")
    if loader is not None and not callable(loader):
        raise WorkloadFailed(
            f"{workload}() returned {_a(loader)} as {LOADER}: expected a function of the batch that makes one, "
            f"or none at all"
        )
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in model.parameters()):
        raise WorkloadFailed(
            f"{workload}() returned a model with parameters that have no shape yet: "
            f"call it once on a batch before the optimizer is made"
        )
    made = Workload(model, optimizer, make_batch, loss, loader, tuple(assumptions))
    trained = {id(parameter) for parameter in made.trained_parameters}
    if not trained:
        raise WorkloadFailed(f"{workload}() returned a model without trainable parameters")
    groups: Iterable[Any] = getattr(optimizer, "param_groups", ())
    stepped = {id(parameter) for group in groups for parameter in group["params"]}
    if stepped and not stepped & trained:
        raise WorkloadFailed(f"{workload}() returned an optimizer over none of the model's parameters")
    return made


def moved_to(device: torch.device, data: Any) -> Any:
    """`data` with each of its tensors on the device, in the same nesting."""
    if callable(getattr(data, "to", None)):  # tensors, packed sequences, batches of tokenizers
        return data.to(device)
    if isinstance(data, dict):
        # A copy of its own kind, since a subclass may be made in a way that nobody knows.
        moved = copy.copy(data)
        moved.update({key: moved_to(device, value) for key, value in data.items()})
        return moved
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(moved_to(device, value) for value in data))
    if isinstance(data, tuple | list):
        return type(data)(moved_to(device, value) for value in data)
    return data


def element_count(data: Any) -> int:
    """Elements of all tensors in the data; 0 where there is none to be seen."""
    return sum(tensor.numel() for tensor in _tensors(data))


def largest_element_count(data: Any) -> int:
    """Elements of the largest tensor in the data, which for sequences tells their padded length."""
    return max((tensor.numel() for tensor in _tensors(data)), default=0)


def _tensors(data: Any) -> Iterator[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        yield data
    elif isinstance(data, Mapping | tuple | list):
        for value in data.values() if isinstance(data, Mapping) else data:
            yield from _tensors(value)


def _nearest(name: str, names: Iterable[str]) -> str:
    there = sorted(names)
    found = difflib.get_close_matches(name, there, n=3) or there[:5]
    return "; nearest: " + ", ".join(repr(near) for near in found) if found else ""


def _a(value: object) -> str:
    kind = type(value).__name__
    return "None" if value is None else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
