"""Clusters as columns are the same clusters."""

from __future__ import annotations

import numpy as np
import pytest

from srifty.records import Cluster, NodeGroup
from srifty.records.cluster_table import ClusterTable, SpreadColumns


def test_a_table_holds_the_clusters_that_it_was_made_of(make_offer):
    small, large = make_offer(), make_offer(instance_type="large", gpu_count=4, usd_per_hour=3.5)
    clusters = [
        Cluster(groups=(NodeGroup(offer=small, node_count=3, batch_per_gpu=8, accumulation_count=2),)),
        Cluster(
            groups=(
                NodeGroup(offer=large, node_count=2, batch_per_gpu=16),
                NodeGroup(offer=small, node_count=1, batch_per_gpu=4),
            )
        ),
    ]
    table = ClusterTable.of(clusters)
    assert [table.cluster(row) for row in range(len(table))] == clusters
    assert table.gpu_count.tolist() == [c.gpu_count for c in clusters] == [3, 9]
    assert table.global_batch.tolist() == [c.global_batch for c in clusters] == [48, 132]
    assert table.usd_per_hour.tolist() == pytest.approx([c.usd_per_hour for c in clusters])


def test_groups_must_take_the_same_number_of_micro_steps(make_offer):
    group = {"offer": make_offer(), "node_count": 1, "batch_per_gpu": 1}
    with pytest.raises(ValueError, match="micro-steps"):
        Cluster(groups=(NodeGroup(**group), NodeGroup(**group, accumulation_count=2)))


def test_the_chance_to_stay_below_a_limit_agrees_with_the_percentiles():
    columns = SpreadColumns(np.array([8.0, 5.0]), np.array([10.0, 5.0]), np.array([16.0, 5.0]))
    assert columns.chance_below(0, 10) == pytest.approx(0.5)
    assert columns.chance_below(0, 16) == pytest.approx(0.9)
    assert columns.chance_below(0, 8) == pytest.approx(0.1)
    assert (columns.chance_below(1, 5), columns.chance_below(1, 4.9)) == (1.0, 0.0)
    assert columns.quantile(0.9)[0] == pytest.approx(16)


def test_the_mean_of_a_lopsided_spread_lies_on_the_long_side():
    spread = SpreadColumns(np.array([9.0]), np.array([10.0]), np.array([20.0])).spread(0)
    draws = np.random.default_rng(0).standard_normal(200_000) / 1.2816
    assert spread.mean == pytest.approx(np.mean(10 + np.where(draws > 0, 10, 1) * draws), rel=0.01)
