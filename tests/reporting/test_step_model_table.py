"""What people see of a fitted model."""

from __future__ import annotations

import io

from rich.console import Console
from tests.predicting.step_kit import LAYOUTS, grid, table

from srifty.predicting.probe_advice import advise
from srifty.predicting.step_model import fit_steps
from srifty.reporting.step_model_table import step_model_table


def shown(layouts):
    model = fit_steps(table(grid(layouts=layouts)))
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
