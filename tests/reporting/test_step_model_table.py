"""What people see of a fitted model."""

from __future__ import annotations

import io

from rich.console import Console
from tests.predicting.step_kit import LAYOUTS, grid, table

from srifty.predicting.probe_advice import advise
from srifty.predicting.step_fit import fit_steps
from srifty.records.step_table import StepTable
from srifty.reporting.step_model_table import step_model_table


def shown(layouts, factor=1.0):
    known = table(grid(layouts=layouts))
    model = fit_steps(StepTable(known.grid, factor * known.step_s, known.exposed_allreduce_s))
    screen = Console(file=io.StringIO(), width=80)
    screen.print(step_model_table(model, advise(model)))
    return " ".join(screen.file.getvalue().split())


def test_what_was_learned_and_what_to_measure_next_are_shown():
    text = shown(((1,), (1, 1), (4,)))
    assert "learned from 36 steps: 3 jobs on 1 kind of machine" in text
    assert "1+1+1" in text or "2+2+2" in text or "4+4+4" in text
    assert "box: no cluster of three machines was measured" in text


def test_where_all_was_measured_no_probe_is_shown():
    text = shown(LAYOUTS)
    assert "no cluster of three machines" not in text
    assert "+" not in text.split("doubt then")[1].split("doubt:")[0].replace("+-", "")


def test_a_job_measured_on_one_gpu_only_says_so_instead_of_a_count():
    row = next(part for part in shown(((1,),)).split("doubt then")[1].split("small") if " box " in part)
    assert "one GPU" in row


def test_a_table_in_milliseconds_is_asked_about_and_one_in_seconds_is_not():
    said = shown(((1,), (1, 1)), factor=1000.0)
    assert "step_s looks like milliseconds" in said
    assert "divide step_s (and exposed_allreduce_s) by 1000" in said
    assert "milliseconds" not in shown(((1,), (1, 1)))
