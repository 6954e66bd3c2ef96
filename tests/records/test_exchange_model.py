"""A model file that was altered by hand is refused in a line that names the field."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime

import pytest

from srifty.errors import InvalidInput
from srifty.records import ExchangeModel
from srifty.records.exchange_model import FEATURE_NAMES, ExchangeSetup, TreeQuantile, TreeTable
from srifty.records.files import from_json, to_json

TREE = TreeTable(
    feature=(2, -1, -1),
    threshold=(20.0, 0.0, 0.0),
    left=(1, 0, 0),
    right=(2, 0, 0),
    missing_left=(True, False, False),
    value=(0.0, -0.1, 0.1),
)
SETUP = ExchangeSetup(
    instance_types=("p3.2xlarge",),
    backend="nccl",
    backend_version="2.21.5",
    has_many_nodes=True,
    link_bytes_per_s=1.25e9,
    latency_s=30e-6,
    latency_growth=1.0,
    share=0.7,
    peer_growth=0.03,
    sharpness=1.0,
    log_covariance=tuple(tuple(0.01 * (i == j) for j in range(5)) for i in range(5)),
    node_range=(2, 8),
    gpus_per_node_range=(1.0, 1.0),
    message_range_bytes=(1024, 2**28),
    concurrency_range=(1, 1),
    sample_count=250,
    session_count=1,
)
MODEL = ExchangeModel(
    setups=(SETUP,),
    features=FEATURE_NAMES,
    backends=("nccl 2.21.5",),
    residuals=tuple(TreeQuantile(quantile=share, base=0.0, trees=(TREE,)) for share in (0.1, 0.5, 0.9)),
    within_session_log_sd=0.03,
    between_session_log_sd=None,
    small_band=(1.0, 1.0),
    large_band=(1.0, 1.0),
    fitted_at=datetime(2026, 1, 1, tzinfo=UTC),
)
GOOD = json.loads(to_json(MODEL))


def altered(place, value):
    fields = copy.deepcopy(GOOD)
    at = fields
    *way, last = place
    for step in way:
        at = at[step]
    at[last] = value
    return json.dumps(fields)


def test_a_good_model_is_read():
    assert from_json(json.dumps(GOOD), ExchangeModel) == MODEL


IDENTITY = [[float(i == j) for j in range(5)] for i in range(5)]


def with_variance(i, j, value):
    rows = copy.deepcopy(IDENTITY)
    rows[i][j] = rows[j][i] = value
    return rows


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("residuals",), [], "residuals holds 0 quantiles"),
        (("residuals",), list(reversed(GOOD["residuals"])), "residuals holds 3 quantiles.*that rise"),
        (("features",), [], "features must be some of"),
        (("features",), ["x"], "features must be some of.*'x' is none"),
        (("features",), ["node_count"], "trees see column 2, and features has 1"),
        (("backends",), [], "backends lacks 'nccl 2.21.5'"),
        (("setups",), GOOD["setups"] * 2, "setups: one of p3.2xlarge stands there twice"),
        (("setups", 0, "log_covariance"), [], "log_covariance must have 5 rows of 5"),
        (
            ("setups", 0, "log_covariance"),
            with_variance(1, 1, -1.0),
            "log_covariance gives a variance below 0",
        ),
        (
            ("setups", 0, "log_covariance"),
            with_variance(1, 2, 3.0),
            "log_covariance gives a variance below 0",
        ),
        (("setups", 0, "log_covariance"), with_variance(1, 1, float("inf")), "log_covariance.* is inf"),
        (("setups", 0, "log_covariance", 0, 1), 0.005, "log_covariance is not symmetric"),
        (("setups", 0, "share"), 1e-300, r"setups\.0\.share is 1e-300"),
        (("setups", 0, "share"), 50.0, r"setups\.0\.share is 50"),
        (("setups", 0, "sharpness"), 1e-9, r"setups\.0\.sharpness is 1e-09"),
        (("setups", 0, "latency_s"), 1e-300, r"setups\.0\.latency_s is"),
        (("setups", 0, "node_range"), [5, 2], "node_range is from 5 to 2; it must rise"),
        (("setups", 0, "node_range"), [5, 1], "node_range is from 5 to 1; it must rise"),
        (("setups", 0, "has_many_nodes"), False, "node_range is .*has_many_nodes False"),
        (("residuals", 1, "base"), 800.0, r"residuals\.1: base and trees add up to 800"),
        (("residuals", 1, "trees", 0, "left"), [0, 0, 0], "left and right of row 0 are no tree"),
        (("residuals", 1, "trees", 0, "left"), [9, 0, 0], "left and right of row 0 are no tree"),
        (("residuals", 1, "trees", 0, "value"), [0.0], "value has 1 rows, feature 3"),
    ],
)
def test_an_altered_model_is_refused_by_field(place, value, said):
    with pytest.raises(InvalidInput, match=said) as refused:
        from_json(altered(place, value), ExchangeModel, name="model.json")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
