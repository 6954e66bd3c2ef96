"""The largest batch of an unchanged script: what is found, what is noted, and what goes wrong."""

from __future__ import annotations

from typing import Any

import pytest

from srifty.errors import InvalidInput, NotMeasured, WorkloadFailed
from tests.profiling.attach_kit import Scripts, processes_of, scripts

__all__ = ["scripts"]

LOOP = """
model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(1000):
    {before}
    loss_of(model, torch.ones(BATCH, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def loop(before: str = "pass", model: str = "nn.Linear(512, 4)") -> str:
    return LOOP.format(before=before, model=model)


def short_above(batch: int) -> str:
    return loop(
        f"if BATCH > {batch}: raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')"
    )


def search(scripts: Scripts, body: str, **more: Any) -> Any:
    return scripts.profile(body, find_max_batch=True, **{"batches": (), "command": _placed(scripts), **more})


def _placed(scripts: Scripts) -> list[str]:
    return scripts.command("{batch}")


def test_memory_that_runs_out_bounds_the_batch_and_leaves_no_process(scripts: Scripts) -> None:
    told: list[str] = []
    profile = search(scripts, short_above(5), on_progress=lambda share, doing: told.append(doing))
    assert told[0] == "trying batch 8 in a process of its own, try 1"
    assert profile.max_batch == 4  # a step below 5
    assert [timing.batch for timing in profile.timings] == [1, 2, 4]
    notes = " / ".join(profile.assumptions)
    assert "--batch 4 [samples] was found by search, with three steps of the script" in notes
    assert "largest batch measured" not in notes
    assert processes_of(scripts.folder) == []


def test_what_a_limit_of_the_system_allows_is_found(scripts: Scripts) -> None:
    limited = """
import resource
loss_of(nn.Linear(8, 8), torch.ones(8, 8)).backward()
taken = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (taken * 1024 + 300 * 2**20, -1))
"""
    held = "held = None; held = torch.ones(BATCH, 10 * 2**18)"  # 10 MiB a sample
    profile = search(scripts, limited + loop(held), batches=(4,))
    assert 20 <= profile.max_batch <= 30
    assert [timing.batch for timing in profile.timings] == [4]
    assert "takes at most 95% of the memory" in " / ".join(profile.assumptions)


def test_a_script_that_shares_its_batch_has_a_largest_micro_batch(scripts: Scripts) -> None:
    shared = """
model = nn.Linear(512, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(1000):
    for part in range(4):
        loss_of(model, torch.ones(BATCH // 4, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    profile = search(scripts, shared, batches=(8, 16), max_batch=32)
    assert profile.max_batch == 8
    assert [timing.batch for timing in profile.timings] == [2, 4]
    notes = " / ".join(profile.assumptions)
    assert "--batch 32 [samples] was found by search" in notes
    assert "it is as asked for, and a larger one may fit" in notes
    assert "--batch 32 is 8 samples a micro-step" in notes


def test_a_bug_at_one_batch_ends_the_search_with_its_traceback_and_what_ran(scripts: Scripts) -> None:
    with pytest.raises(WorkloadFailed) as caught:
        search(scripts, loop("assert BATCH != 16, 'no sixteen'"))
    said = str(caught.value)
    assert "failed with exit status 1 (AssertionError: no sixteen); it fails without Srifty too" in said
    assert "this is no want of memory, and batch 8 ran" in said
    assert "--max-batch 8" in said
    assert 'train.py", line' in caught.value.workload_traceback
    assert "srifty" not in caught.value.workload_traceback


def test_where_nothing_fits_it_says_what_was_tried_and_what_to_do(scripts: Scripts) -> None:
    with pytest.raises(NotMeasured) as caught:
        search(scripts, short_above(0), max_batch=2)
    said = str(caught.value)
    assert said.startswith("no batch fits: batches 2, 1 of 'script' ran out of the memory of this machine")
    assert "CUDA out of memory" in said


def test_batch_normalisation_starts_at_two(scripts: Scripts) -> None:
    body = loop(model="nn.Sequential(nn.Linear(512, 4), nn.BatchNorm1d(4))")
    profile = search(scripts, body, batches=(1,), max_batch=2)
    assert [timing.batch for timing in profile.timings] == [2]
    assert (profile.min_batch, profile.max_batch) == (2, 2)


def test_a_data_set_that_ends_bounds_the_batch(scripts: Scripts) -> None:
    body = """
model = nn.Linear(512, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(1000):
    for x in DataLoader(Samples(20), batch_size=BATCH):
        loss_of(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    profile = search(scripts, body, batches=(4,))
    assert profile.max_batch == 16
    assert "at batch 32 the script had no more than 20 samples" in " / ".join(profile.assumptions)


def test_a_cap_holds_without_a_search_too(scripts: Scripts) -> None:
    profile = scripts.profile(loop(), batches=(4, 16), max_batch=9)
    assert [timing.batch for timing in profile.timings] == [4]
    with pytest.raises(InvalidInput, match=r"batches are \[4, 16\]: all are above max_batch, 3"):
        scripts.profile(loop(), batches=(16, 4), max_batch=3)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"find_max_batch": True, "batches": ()}, "--find-max-batch needs a place for the batch"),
        ({"max_batch": 8, "batches": ()}, "--max-batch needs a place for the batch"),
        ({"find_max_batch": True, "max_batch": 0, "place": True}, "max_batch is 0: expected at least 1"),
        ({"find_max_batch": True, "samples_per_step": 8, "place": True}, "leave one of the two out"),
    ],
)
def test_a_search_that_cannot_be_is_refused(scripts: Scripts, more: dict[str, Any], said: str) -> None:
    command = scripts.command("{batch}") if more.pop("place", False) else scripts.command()
    with pytest.raises(InvalidInput, match=said):
        scripts.profile(loop(), command=command, **more)
