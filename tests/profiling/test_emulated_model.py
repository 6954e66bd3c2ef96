"""A device that sleeps: passes take their time, with real gradients, and profiles like any model."""

from __future__ import annotations

import random
import time

import pytest
import torch

from srifty.profiling.emulated_model import EmulatedDevice, EmulatedModel, EmulatedOptimizer
from srifty.records.emulated_job import EmulatedJob, EmulatedLayer

JOB = EmulatedJob(
    name="four",
    layers=(EmulatedLayer(parameter_bytes=4000, forward_share=0.25, backward_share=0.25),) * 4,
    batch=(10, 20),
    forward_s=(0.02, 0.03),
    backward_s=(0.04, 0.06),
    optimizer_s=0.01,
)


def passes(device: EmulatedDevice, batch: int) -> tuple[float, float, float]:
    """Forward, backward and optimizer [s]; the fastest of three, since sleeps only ever take longer."""
    model = EmulatedModel(JOB, device)
    optimizer = EmulatedOptimizer(model)
    told = []
    for _ in range(3):
        begin = time.perf_counter()
        loss = model(torch.zeros(batch, 1)).sum()
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        optimizer.step()
        told.append((middle - begin, end - middle, time.perf_counter() - end))
    assert all(weight.grad is not None and weight.grad.shape == weight.shape for weight in model.weights)
    return tuple(min(times) for times in zip(*told, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("speed", "batch", "expected"),
    [(1.0, 10, (0.02, 0.04)), (1.0, 15, (0.025, 0.05)), (2.0, 20, (0.015, 0.03)), (1.0, 40, (0.06, 0.12))],
)
def test_passes_take_the_time_of_the_job(speed, batch, expected):
    forward, backward, optimizer = passes(EmulatedDevice(speed=speed), batch)
    assert forward == pytest.approx(expected[0], rel=0.2, abs=0.004)
    assert backward == pytest.approx(expected[1], rel=0.2, abs=0.004)
    assert optimizer == pytest.approx(0.01 / speed, rel=0.3, abs=0.004)


def test_gradients_come_last_layer_first_each_after_its_share():
    model = EmulatedModel(JOB, EmulatedDevice())
    came: list[tuple[int, float]] = []
    for number, weight in enumerate(model.weights):
        weight.register_post_accumulate_grad_hook(
            lambda _, number=number: came.append((number, time.perf_counter()))
        )
    loss = model(torch.zeros(10, 1)).sum()
    begin = time.perf_counter()
    loss.backward()
    assert [number for number, _ in came] == [3, 2, 1, 0]
    for place, (_, at) in enumerate(came, 1):
        assert at - begin >= 0.01 * place - 0.001


def test_noise_is_a_step_s_and_the_same_for_the_same_seed():
    first, again = (
        EmulatedDevice(noise=0.5, random=random.Random(3)),  # noqa: S311
        EmulatedDevice(noise=0.5, random=random.Random(3)),  # noqa: S311
    )
    factors = []
    for device in (first, again):
        for _ in range(3):
            device.begin()
            factors.append(device._factor)
    assert factors[:3] == factors[3:]
    assert len(set(factors)) == 3


def test_while_gradients_are_exchanged_a_slowed_device_takes_longer():
    device = EmulatedDevice(exchange_slowdown=1.5)
    device.begin()
    device.in_flight = 1
    begin = time.perf_counter()
    device.compute(0.02, is_backward=True)
    assert time.perf_counter() - begin >= 0.03
