"""Boosted trees: fitted by XGBoost, and evaluated without it, so that a saved model loads at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from srifty.errors import InvalidInput
from srifty.records.exchange_model import TreeQuantile, TreeTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST_WIDTH = 0.005
WIDTH = 0.1
"""Of the rounded corner of a quantile's loss, in standard deviations of the target."""


def fit_quantile(
    features: Floats,
    target: Floats,
    weight: Floats,
    *,
    quantile: float,
    rises_with: Sequence[int],
    round_count: int,
    depth: int = 3,
    learning_rate: float = 0.1,
) -> TreeQuantile:
    """Trees for one quantile of the target, monotone in each feature as `rises_with` says.

    The loss is the quantile's (Koenker and Bassett, 1978) with its corner rounded over a width h, and stated here
    because XGBoost's own `reg:quantileerror` sets each leaf to a quantile of its rows after the tree is built, which
    breaks the constraints:

        gradient = (1 - q) - sigmoid((target - told) / h),   curvature = at least 0.1 / h

    Args:
        features: [row, feature]; NaN where one is not known
        target: [row]
        weight: of each row in the loss
        quantile: 0.5 for the median
        rises_with: a feature: 1 the quantile never falls with it, -1 never rises, 0 free
        round_count: trees; 0: the weighted quantile alone

    Raises:
        InvalidInput: XGBoost is not installed
    """
    base = _weighted_quantile(target, weight, quantile)
    if round_count == 0:
        return TreeQuantile(quantile=quantile, base=base)
    xgboost = xgboost_module()
    data = xgboost.DMatrix(features, label=target - base)
    width = max(LEAST_WIDTH, WIDTH * float(np.std(target)))
    scale = weight / weight.mean()

    def rounded_corner(told: Floats, _data: object) -> tuple[Floats, Floats]:
        above = 0.5 * (1 + np.tanh((target - base - told) / (2 * width)))
        gradient = (1 - quantile) - above
        # Both times the width, so that a leaf's weight counts rows and has no unit of the target.
        return gradient * width * scale, np.maximum(above * (1 - above), 0.1) * scale

    booster = xgboost.train(
        {
            "base_score": 0.0,
            "monotone_constraints": "(" + ",".join(str(way) for way in rises_with) + ")",
            "max_depth": depth,
            "eta": learning_rate,
            "lambda": 0.1,
            "min_child_weight": 0.3,
            "tree_method": "hist",
            "nthread": 1,
            "seed": 0,
        },
        data,
        num_boost_round=round_count,
        obj=rounded_corner,
    )
    return from_xgboost(booster, quantile=quantile, base=base)


def from_xgboost(booster: Any, *, quantile: float, base: float) -> TreeQuantile:
    """A booster's trees as tables; `base` is added to what they say."""
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    offset = learner["learner_model_param"]["base_score"].strip("[]")
    trees = tuple(_table(tree) for tree in learner["gradient_booster"]["model"]["trees"])
    return TreeQuantile(quantile=quantile, base=base + float(offset), trees=trees)


def xgboost_module() -> Any:
    """XGBoost, which only fitting needs.

    Raises:
        InvalidInput: it is not installed
    """
    try:
        import xgboost
    except ImportError:
        raise InvalidInput("to fit a model, install what fits it: pip install 'srifty[fit]'") from None
    return xgboost


def evaluate(residual: TreeQuantile, features: Floats) -> Floats:
    """What the trees say of each row, as XGBoost itself would: thresholds and features are compared as float32.

    Args:
        residual: the trees
        features: [row, feature]; NaN where one is not known
    """
    seen = features.astype(np.float32)
    is_missing = np.isnan(seen)
    rows = np.arange(len(seen))
    total = np.full(len(seen), residual.base)
    for tree in residual.trees:
        feature = np.array(tree.feature)
        threshold = np.array(tree.threshold, np.float32)
        left, right = np.array(tree.left), np.array(tree.right)
        missing_left = np.array(tree.missing_left)
        node = np.zeros(len(seen), np.int64)
        while True:
            chosen = feature[node]
            inner = chosen >= 0
            if not inner.any():
                break
            column = np.maximum(chosen, 0)
            goes_left = np.where(
                is_missing[rows, column], missing_left[node], seen[rows, column] < threshold[node]
            )
            node = np.where(inner, np.where(goes_left, left[node], right[node]), node)
        total += np.array(tree.value)[node]
    return total


def _table(tree: dict[str, Any]) -> TreeTable:
    is_leaf = [child == -1 for child in tree["left_children"]]
    condition = tree["split_conditions"]
    return TreeTable(
        feature=tuple(
            -1 if leaf else index for leaf, index in zip(is_leaf, tree["split_indices"], strict=True)
        ),
        threshold=tuple(0.0 if leaf else value for leaf, value in zip(is_leaf, condition, strict=True)),
        left=tuple(max(child, 0) for child in tree["left_children"]),
        right=tuple(max(child, 0) for child in tree["right_children"]),
        missing_left=tuple(bool(way) for way in tree["default_left"]),
        value=tuple(value if leaf else 0.0 for leaf, value in zip(is_leaf, condition, strict=True)),
    )


def _weighted_quantile(values: Floats, weight: Floats, share: float) -> float:
    order = np.argsort(values)
    middle = np.cumsum(weight[order]) - weight[order] / 2
    return float(np.interp(share * weight.sum(), middle, values[order]))
