"""The predicted iteration of one cluster as a trace: the event simulator, given the numbers of the estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from srifty.predicting.exchange_schemes import RankStep, ddp_script
from srifty.predicting.iteration_trace import simulate_events
from srifty.records.iteration_span import IterationTrace

if TYPE_CHECKING:
    from srifty.predicting.scenarios import StepColumns
    from srifty.records.cluster import Cluster, NodeGroup


def trace_of(step: StepColumns, cluster: Cluster) -> IterationTrace:
    """Spans of the median iteration; one rank stands for all of its node group, which do the same.

    Args:
        step: columns of one row, this cluster's
        cluster: whose groups name the ranks
    """
    cost = step.cost
    ranks = [
        RankStep(
            wait_s=float(group.wait_s[0]),
            forward_s=float(group.forward_s[0]),
            backward_s=float(group.backward_s[0]),
            other_s=float(group.other_s[0]),
            optimizer_s=float(group.optimizer_s[0]),
            ready_at=tuple(group.ready_at.tolist()),
        )
        for group in step.groups
    ]
    script = ddp_script(
        ranks,
        (cost.latency_s[0] + cost.seconds_per_byte[0] * cost.bucket_bytes).tolist(),
        micro_steps=int(step.micro_steps[0]),
        exchanges_each=step.exchanges_each,
        straggler_s=float(step.straggler_s[0]),
    )
    spans = simulate_events(script, slot_count=cost.slot_count, slow_down=cost.slow_down)
    return IterationTrace(tuple(_name(group) for group in cluster.groups), spans)


def _name(group: NodeGroup) -> str:
    gpus = f"{group.gpu_count} GPU{'s' if group.gpu_count > 1 else ''} ({group.offer.gpu})"
    return f"{group.node_count} x {group.offer.instance_type}: {gpus}, batch {group.batch_per_gpu} each"
