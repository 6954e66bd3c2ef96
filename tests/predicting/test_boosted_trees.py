"""Saved trees say what XGBoost says, and keep to the direction that they are given."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from srifty.errors import InvalidInput
from srifty.predicting.boosted_trees import evaluate, fit_quantile, from_xgboost, xgboost_module


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(1)
    features = draw.normal(size=(600, 4))
    features[draw.random(features.shape) < 0.1] = np.nan
    seen = np.nan_to_num(features)
    return features, np.sin(2 * seen[:, 0]) + seen[:, 1] - 0.5 * seen[:, 2] + 0.1 * draw.normal(size=600)


@pytest.mark.parametrize("objective", ["reg:squarederror", "reg:quantileerror"])
@pytest.mark.parametrize("base", [0.0, 0.7])
def test_they_say_what_xgboost_says(data, objective, base):
    xgboost = pytest.importorskip("xgboost")
    features, target = data
    rows = xgboost.DMatrix(features, label=target)
    settings = {"objective": objective, "max_depth": 5, "base_score": base, "nthread": 1}
    settings |= {"quantile_alpha": 0.9} if "quantile" in objective else {}
    booster = xgboost.train(settings, rows, num_boost_round=80)
    ours = evaluate(from_xgboost(booster, quantile=0.5, base=0.0), features)
    assert np.abs(ours - booster.predict(rows)).max() < 1e-5


def test_they_rise_only_where_they_may(data):
    pytest.importorskip("xgboost")
    features, target = data
    trees = fit_quantile(
        features, target, np.ones(600), quantile=0.5, rises_with=(1, 1, -1, 0), round_count=40
    )
    line = np.linspace(-3, 3, 200)
    for feature, way in ((0, 1), (1, 1), (2, -1)):
        along = np.zeros((200, 4))
        along[:, feature] = line
        told = evaluate(trees, along)
        assert (way * np.diff(told) >= -1e-6).all()  # leaves are float32
        assert way * (told[-1] - told[0]) > 0.5


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_they_tell_the_quantile_that_is_asked(share):
    pytest.importorskip("xgboost")
    draw = np.random.default_rng(2)
    features = draw.random((4000, 1))
    target = (1 + 3 * (features[:, 0] > 0.5)) * draw.normal(size=4000)
    trees = fit_quantile(features, target, np.ones(4000), quantile=share, rises_with=(0,), round_count=150)
    below = target < evaluate(trees, features)
    assert below[features[:, 0] < 0.5].mean() == pytest.approx(share, abs=0.05)
    assert below[features[:, 0] > 0.5].mean() == pytest.approx(share, abs=0.05)


def test_no_trees_are_a_quantile_of_the_target():
    target = np.arange(101.0)
    nothing = np.zeros((101, 1))
    trees = fit_quantile(nothing, target, np.ones(101), quantile=0.9, rises_with=(0,), round_count=0)
    assert evaluate(trees, nothing) == pytest.approx(np.full(101, 90.0), abs=1)


def test_without_xgboost_a_fit_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(InvalidInput, match=r"pip install 'srifty\[fit\]'"):
        xgboost_module()
