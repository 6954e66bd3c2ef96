"""A file of a StepModel that was changed by hand is refused by field, or told from in finite numbers."""

from __future__ import annotations

import json

import pytest

from srifty.errors import InvalidInput
from srifty.predicting.step_fit import fit_steps
from srifty.predicting.step_model import predict_steps
from srifty.records import StepModel
from srifty.records.files import from_json, to_json
from tests.predicting.step_kit import grid, table


@pytest.fixture(scope="module")
def text():
    return to_json(fit_steps(table(grid(layouts=((1,), (4,), (1, 1))))))


def changed(text, part, field, change):
    fields = json.loads(text)
    fields[part][0][field] = change(fields[part][0][field])
    return json.dumps(fields)


def test_a_model_as_it_was_written_is_read(text):
    assert to_json(from_json(text, StepModel)) == text


@pytest.mark.parametrize(
    ("part", "field", "change", "said"),
    [
        ("jobs", "covariance_root", lambda old: [*old[:3], 1e300, *old[4:]], "jobs.0.covariance_root.3"),
        ("jobs", "best", lambda old: [-1e9, *old[1:]], "jobs.0.best.0"),
        ("jobs", "best", lambda old: old[1:], "best holds"),
        ("jobs", "band", lambda old: 1e9, "jobs.0.band"),
        ("jobs", "layout_count", lambda old: 0, "layout_count 0 does not fit"),
        ("machines", "mean", lambda old: [*old[:-1], 1e300], "machines.0.mean.12"),
        ("machines", "gpus_per_node", lambda old: 0, "gpus_per_node 0 do not fit"),
        ("machines", "gpu_count", lambda old: 1000, "gpu_count 1000"),
        ("machines", "node_count", lambda old: -1, "machines.0.node_count"),
    ],
)
def test_what_cannot_be_so_is_refused_in_one_line_by_field(text, part, field, change, said):
    with pytest.raises(InvalidInput) as refused:
        from_json(changed(text, part, field, change), StepModel, name="model.json")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_numbers_that_are_each_possible_but_tell_no_finite_step_are_refused(text):
    known = from_json(changed(text, "jobs", "covariance_root", lambda old: [900.0] * len(old)), StepModel)
    with pytest.raises(
        InvalidInput, match="no finite step of job .* make it again with 'srifty fit --steps'"
    ):
        predict_steps(known, grid())
