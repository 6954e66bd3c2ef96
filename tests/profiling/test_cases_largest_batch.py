"""What went wrong for users of other tools that search the largest batch, and the right value here.

Each test names the public report that it is about. The tries are real, each in a process of its own; a "GPU" whose
memory ends at some batch is an error that torch raises at that batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from srifty.errors import NotMeasured, WorkloadFailed
from srifty.profiling.profiler import profile
from srifty.records import Job, JobProfile

WORKLOAD = """
from pathlib import Path
import torch
from torch import nn

TRIED = Path(__file__).with_name("tried.txt")

def runs_out():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

class Optimizer(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        super().step(closure)
        self.steps += 1

def make_batch(batch):
    with TRIED.open("a") as file:
        file.write(f"{batch}\\n")
    return torch.randn(batch, 8)

def loss(model, data):
    BODY
    return model(data).square().mean()

model = nn.Sequential(nn.Linear(8, 8))
optimizer = Optimizer(model.parameters(), lr=0.01)

def make():
    return model, optimizer, make_batch, loss
"""


def _search(folder: Path, body: str, *, max_batch: int, text: str = WORKLOAD) -> JobProfile:
    (folder / "work.py").write_text(text.replace("BODY", body), encoding="utf-8")
    return profile(
        Job(name="a-test", workload="work:make"),
        folder=folder,
        device="cpu",
        seconds_per_batch=0.02,
        find_max_batch=True,
        max_batch=max_batch,
    )


def _tried(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "tried.txt").read_text().split()]


def test_where_the_first_try_does_not_fit_the_search_goes_down(tmp_path: Path) -> None:
    """pytorch-lightning#3103: the first batch tried was too large, and the search went up from there."""
    found = _search(tmp_path, "if len(data) > 3: runs_out()", max_batch=64)
    tried = _tried(tmp_path)
    assert tried[0] > 3
    assert found.max_batch == 2  # 3 fits, and leaves no margin of 5 %
    assert max(tried) == tried[0]


def test_where_no_batch_fits_that_is_said_and_no_batch_is_given(tmp_path: Path) -> None:
    """pytorch-lightning#3103: the answer was a batch that does not fit; here there is none, and what to do."""
    with pytest.raises(NotMeasured, match=r"^no batch fits: .*CUDA out of memory") as caught:
        _search(tmp_path, "runs_out()", max_batch=2)
    assert "GPU with more memory" in str(caught.value)
    assert _tried(tmp_path)[-1] == 1


def test_what_only_a_second_step_runs_out_of_does_not_fit(tmp_path: Path) -> None:
    """pytorch-lightning#9625, #20231: the batch found ran out later, once the optimizer held its state."""
    found = _search(tmp_path, "if optimizer.steps and len(data) > 2: runs_out()", max_batch=4)
    assert found.max_batch <= 2
    assert [timing.batch for timing in found.timings][-1] == found.max_batch


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError('CUDA error: device-side assert triggered')",
        "RuntimeError('The size of tensor a (7) must match the size of tensor b (8)')",
        "RuntimeError()",
    ],
)
def test_a_bug_ends_the_search_at_the_try_that_meets_it(tmp_path: Path, error: str) -> None:
    """accelerate#1934: every RuntimeError was taken for a want of memory, down to "reached zero" hours later."""
    with pytest.raises(WorkloadFailed) as caught:
        _search(tmp_path, f"raise {error}", max_batch=64)
    assert len(_tried(tmp_path)) == 1
    assert error.partition("(")[0] in str(caught.value)
    assert f"raise {error}" in caught.value.workload_traceback


def test_with_batch_normalisation_no_try_and_no_batch_is_of_one_sample(tmp_path: Path) -> None:
    """pytorch#4534: "Expected more than 1 value per channel when training"; the search starts at two."""
    found = _search(
        tmp_path,
        "if len(data) > 4: runs_out()",
        max_batch=8,
        text=WORKLOAD.replace("nn.Linear(8, 8))", "nn.Linear(8, 8), nn.BatchNorm1d(8))"),
    )
    assert found.min_batch == 2
    assert 2 <= found.max_batch <= 4
    assert min(_tried(tmp_path)) == 2
