"""What was learned from steps made of known numbers tells steps that were not shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.predicting.step_kit import LAYOUTS, TRUE, grid, table, true_step_s

from srifty.errors import NotMeasured
from srifty.predicting.step_fit import fit_steps
from srifty.predicting.step_model import predict_steps
from srifty.predicting.step_physics import NAMES
from srifty.records import StepModel
from srifty.records.files import from_json, to_json
from srifty.records.step_table import StepGrid, StepTable


def error(model, asked, true=TRUE):
    return np.abs(predict_steps(model, asked).p50_s / true_step_s(asked, true) - 1)


@pytest.fixture(scope="module")
def model():
    return fit_steps(table(grid()))


def test_layouts_that_were_not_shown_are_told():
    shown = tuple(layout for i, layout in enumerate(LAYOUTS) if i == 0 or i % 3)
    hidden = tuple(set(LAYOUTS) - set(shown))
    assert error(fit_steps(table(grid(layouts=shown))), grid(layouts=hidden)).mean() < 0.02


def test_the_machine_s_rates_are_recovered(model):
    found = dict(zip(NAMES, model.machines[0].mean, strict=True))
    assert found["between"] == pytest.approx(TRUE["between"], abs=0.2)
    assert found["within"] == pytest.approx(TRUE["within"], abs=0.5)
    assert found["pair"] == pytest.approx(TRUE["pair"], abs=0.15)


def test_a_new_job_s_steps_are_told_from_its_curve_and_what_others_taught():
    others = grid(jobs=("small", "large"))
    alone = grid(jobs=("middle",), layouts=((1,),))
    asked = grid(jobs=("middle",), layouts=LAYOUTS[1:])
    by_itself = error(fit_steps(table(alone)), asked).mean()
    both = StepGrid(
        others.job + alone.job,
        others.machine + alone.machine,
        others.layout + alone.layout,
        np.concatenate([others.batch_per_gpu, alone.batch_per_gpu]),
        np.concatenate([others.gradient_bytes, alone.gradient_bytes]),
    )
    with_others = error(fit_steps(table(both)), asked).mean()
    assert with_others < 0.1
    assert with_others < 0.5 * by_itself


def test_two_probes_tell_a_job_of_unknown_bytes():
    layouts = ((1,), (4,), (1, 1), (4, 4, 4))
    known = fit_steps(table(grid(jobs=("large",), layouts=layouts, known_bytes=False)))
    assert error(known, grid(jobs=("large",), known_bytes=False)).mean() < 0.06


def test_bands_of_unseen_layouts_hold_most_readings_and_are_narrower_than_those_of_a_new_machine(model):
    shown = tuple(layout for i, layout in enumerate(LAYOUTS) if i == 0 or i % 2)
    asked = grid(layouts=tuple(set(LAYOUTS) - set(shown)))
    measured = table(asked, noise=0.03, seed=1).step_s
    told = predict_steps(fit_steps(table(grid(layouts=shown), noise=0.03)), asked)
    assert np.mean((told.p10_s <= measured) & (measured <= told.p90_s)) >= 0.6
    elsewhere = predict_steps(model, grid(machine=("other box", "T4")))
    several = np.array([sum(layout) > 1 for layout in grid().layout])
    assert np.mean(told.p90_s / told.p10_s) < np.mean((elsewhere.p90_s / elsewhere.p10_s)[several])


def test_a_wild_reading_does_not_spoil_the_rest():
    known = table(grid())
    step_s = known.step_s.copy()
    step_s[7::40] *= 8
    assert error(fit_steps(StepTable(known.grid, step_s, known.exposed_allreduce_s)), grid()).mean() < 0.04


def test_an_unknown_machine_is_answered_from_the_formula_and_marked(model):
    told = predict_steps(model, grid(machine=("other box", "V100")))
    assert all(said.startswith("machine not measured") for said in told.extrapolated)
    assert np.isfinite(told.p90_s).all()


def test_one_gpu_of_the_same_kind_in_an_unknown_machine_is_told_from_its_curve(model):
    asked = grid(machine=("other box", "T4"), layouts=((1,),))
    told = predict_steps(model, asked)
    assert np.abs(told.p50_s / true_step_s(asked) - 1).max() < 0.05


def test_one_gpu_in_a_machine_never_measured_is_marked_and_its_band_allows_for_another_host(model):
    asked = grid(machine=("other box", "T4"), layouts=((1,),))
    told, measured = predict_steps(model, asked), predict_steps(model, grid(layouts=((1,),)))
    assert set(told.extrapolated) == {"machine not measured"}
    assert set(measured.extrapolated) == {""}
    assert (told.p90_s / told.p50_s > 1.1).all()
    assert (measured.p90_s / measured.p50_s < 1.1).all()


def test_a_gpu_never_measured_is_named_and_its_band_is_a_factor_of_several(model):
    told = predict_steps(model, grid(jobs=("small",), machine=("other box", "A100"), layouts=((1,),)))
    assert set(told.extrapolated) == {"machine not measured; GPU A100 not measured for job small"}
    assert (told.p90_s / told.p50_s > 3).all()
    assert (told.p50_s / told.p10_s > 3).all()


falling_late = st.lists(st.floats(-0.4, 1.0), min_size=1, max_size=8)


@given(falling_late, st.sampled_from([((1,),), ((1,), (1, 1), (4,)), LAYOUTS]), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_a_step_never_falls_with_the_batch_beyond_the_measured_range(slopes, layouts, seed):
    batches = tuple(8 * 2**i for i in range(len(slopes) + 1))
    asked = grid(jobs=("small",), layouts=layouts, batches=batches)
    known = table(asked, noise=0.03, seed=seed)
    curve = 0.01 * np.exp(np.log(2) * np.concatenate([[0], np.cumsum(slopes)]))
    of_batch = curve[np.searchsorted(batches, asked.batch_per_gpu)]
    bent = StepTable(asked, known.step_s * of_batch, known.exposed_allreduce_s)
    fitted = fit_steps(bent)
    for layout in ((1,), (2, 2), (4, 4, 4)):
        for machine in (("box", "T4"), ("other box", "V100")):
            wide = tuple(int(batches[-1] * 1.3**i) for i in range(20))
            told = predict_steps(
                fitted, grid(jobs=("small",), layouts=(layout,), batches=wide, machine=machine)
            )
            assert (np.diff(told.p50_s) >= -1e-9 * told.p50_s[1:]).all()


def test_beyond_the_largest_batch_a_step_goes_on_rising_as_it_last_did():
    batches = tuple(round(32 * 2 ** (i / 2)) for i in range(21))
    asked = grid(jobs=("small",), layouts=((1,), (1, 1), (2, 2)), batches=batches)
    kink = 0.007 * np.maximum(1, asked.batch_per_gpu / batches[14]) ** 0.5
    at = kink * (1 + 0.5 * (np.array([len(layout) for layout in asked.layout]) > 1))
    fitted = fit_steps(StepTable(asked, at, np.full(len(at), np.nan)))
    far = (batches[-1], 2 * batches[-1], 16 * batches[-1])
    told = predict_steps(fitted, grid(jobs=("small",), layouts=((1,),), batches=far)).p50_s
    assert told[1] > 1.35 * told[0]
    assert told[2] > 3.6 * told[0]


def test_a_job_never_measured_is_refused_by_name(model):
    asked = grid(jobs=("small",))
    with pytest.raises(NotMeasured, match="'smal' was measured .did you mean 'small'"):
        predict_steps(model, StepGrid(("smal",) * len(asked), *list(asked.__dict__.values())[1:]))


def test_what_lies_outside_is_named():
    known = fit_steps(table(grid(layouts=((1,), (2,), (1, 1), (2, 2)))))
    asked = grid(jobs=("small",), layouts=((2, 2), (1, 1, 1), (3,), (4, 4)), batches=(16, 640, 4))
    said = dict(
        zip(
            zip(asked.layout, asked.batch_per_gpu.tolist(), strict=True),
            predict_steps(known, asked).extrapolated,
            strict=True,
        )
    )
    assert said[(2, 2), 16] == ""
    assert said[(1, 1, 1), 16] == "3 nodes, measured up to 2"
    assert said[(3,), 16] == "3 GPUs on a node, measured up to 2"
    assert said[(2, 2), 640] == "batch 640, measured up to 64"
    assert said[(2, 2), 4] == "batch 4, measured from 8"
    assert said[(4, 4), 640] == "4 GPUs on a node, measured up to 2; batch 640, measured up to 64"


def test_a_job_with_one_gpu_only_says_so():
    known = fit_steps(table(grid(layouts=((1,),))))
    told = predict_steps(known, grid(layouts=((1,), (2, 2)), jobs=("small",)))
    assert told.extrapolated[0] == ""
    assert told.extrapolated[-1] == "job not measured on several GPUs of this machine"


def test_the_order_of_rows_and_of_nodes_does_not_matter(model):
    known = table(grid())
    shuffled = np.random.default_rng(3).permutation(len(known))
    rows = known.rows(shuffled)
    backwards = StepGrid(
        rows.grid.job,
        rows.grid.machine,
        tuple(layout[::-1] for layout in rows.grid.layout),
        rows.grid.batch_per_gpu,
        rows.grid.gradient_bytes,
    )
    other = fit_steps(StepTable(backwards, rows.step_s, rows.exposed_allreduce_s))
    np.testing.assert_allclose(
        predict_steps(other, grid()).p50_s, predict_steps(model, grid()).p50_s, rtol=1e-3
    )


def test_the_same_steps_make_the_same_model(model):
    assert fit_steps(table(grid())) == model


def test_a_model_s_file_tells_what_the_model_tells(model):
    again = from_json(to_json(model), StepModel)
    assert again == model
    np.testing.assert_array_equal(predict_steps(again, grid()).p50_s, predict_steps(model, grid()).p50_s)


def test_bytes_that_only_the_grid_states_are_used():
    others = fit_steps(table(grid(layouts=((1,),), known_bytes=False)))
    asked = grid(jobs=("large",), layouts=((4, 4),))
    stated = predict_steps(others, asked)
    unstated = predict_steps(others, grid(jobs=("large",), layouts=((4, 4),), known_bytes=False))
    assert (stated.p50_s > unstated.p50_s).all()
    assert np.log(stated.p90_s / stated.p10_s).mean() < np.log(unstated.p90_s / unstated.p10_s).mean()


def together(*parts):
    return StepGrid(
        sum((part.job for part in parts), ()),
        sum((part.machine for part in parts), ()),
        sum((part.layout for part in parts), ()),
        np.concatenate([part.batch_per_gpu for part in parts]),
        np.concatenate([part.gradient_bytes for part in parts]),
    )


def fit_both(taught=True, true=TRUE):
    """The jobs but "middle" on box and crate; "middle" alone on crate, and if taught on box; its bytes unknown."""
    box = [grid(jobs=("small", "large")), grid(jobs=("middle",), known_bytes=False)]
    crate = grid(jobs=("small", "large"), machine=("crate", "T4"))
    alone = grid(jobs=("middle",), machine=("crate", "T4"), layouts=((1,),), known_bytes=False)
    shown = [table(together(*box[: 1 + taught]), true), table(together(crate, alone))]
    return fit_steps(
        StepTable(
            together(*(each.grid for each in shown)),
            np.concatenate([each.step_s for each in shown]),
            np.concatenate([each.exposed_allreduce_s for each in shown]),
        )
    )


MIDDLE = {"jobs": ("middle",), "known_bytes": False}


def test_bytes_learned_on_one_machine_are_taken_to_another():
    asked = grid(machine=("crate", "T4"), layouts=LAYOUTS[1:], **MIDDLE)
    with_box, without = fit_both(), fit_both(taught=False)
    assert error(with_box, asked).mean() < 0.1
    told, blind = predict_steps(with_box, asked), predict_steps(without, asked)
    assert np.log(told.p90_s / told.p10_s).mean() < 0.6 * np.log(blind.p90_s / blind.p10_s).mean()


def test_a_row_says_that_its_bytes_were_learned_elsewhere_until_the_grid_states_them():
    model = fit_both()
    learned = "gradient bytes learned from other machines"
    unseen = grid(machine=("barrel", "T4"), layouts=((4, 4),), **MIDDLE)
    assert set(predict_steps(model, unseen).extrapolated) == {f"machine not measured; {learned}"}
    alone = "job not measured on several GPUs of this machine"
    asked = {"jobs": ("middle",), "machine": ("crate", "T4"), "layouts": ((4, 4),)}
    untold, stated = (predict_steps(model, grid(**asked, known_bytes=known)) for known in (False, True))
    assert set(untold.extrapolated) == {f"{alone}; {learned}"}
    assert set(stated.extrapolated) == {alone}
    assert (stated.p90_s / stated.p10_s < untold.p90_s / untold.p10_s).all()


def test_bytes_are_not_learned_where_a_fast_network_hides_the_exchange():
    fast = {**TRUE, "between": TRUE["between"] - 3, "within": TRUE["within"] - 3}
    model = fit_both(true=fast)
    assert {fit.learned_bytes for fit in model.jobs} == {None}
    asked = grid(machine=("crate", "T4"), layouts=((4, 4),), **MIDDLE)
    told = predict_steps(model, asked)
    assert all("gradient bytes not known" in each for each in told.extrapolated)
    assert (told.p90_s / told.p50_s > 2).all()


def test_exposed_exchange_tells_compute_from_exchange():
    asked = grid(jobs=("large",), layouts=((4, 4),))
    known = table(asked)
    exposed = known.step_s - 1.02 * (0.04 + 0.004 * asked.batch_per_gpu)
    with_it = fit_steps(StepTable(asked, known.step_s, np.maximum(exposed, 0)))
    alone = grid(jobs=("large",), layouts=((1,),))
    told_with = error(with_it, alone).mean()
    assert told_with < 0.25
    assert told_with < error(fit_steps(known), alone).mean()


rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from([("box", "T4"), ("crate", "V100")]),
        st.lists(st.integers(1, 8), min_size=1, max_size=6).map(tuple),
        st.integers(1, 4096),
        st.floats(1e-4, 1e3),
        st.one_of(st.just(float("nan")), st.floats(0, 1)),
        st.one_of(st.just(float("nan")), st.just(1e8)),
    ),
    min_size=1,
    max_size=12,
)


@given(rows)
@settings(max_examples=40, deadline=None)
def test_any_steps_can_be_learned_from_and_told(drawn):
    job, machine, layout, batch, step_s, exposed, size = zip(*drawn, strict=True)
    asked = StepGrid(job, machine, layout, np.array(batch), np.array(size))
    told = predict_steps(fit_steps(StepTable(asked, np.array(step_s), np.array(exposed) * step_s)), asked)
    assert np.isfinite(told.mean_s).all()
    assert (told.p10_s <= told.p50_s).all()
    assert (told.p50_s <= told.p90_s).all()
    assert (told.p10_s > 0).all()
