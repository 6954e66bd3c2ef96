"""Records: the nouns. Small frozen values that stages hand to one another, each also a file one can open."""

from srifty.records.cluster import Cluster, NodeGroup
from srifty.records.estimate import IterationEstimate, JobEstimate
from srifty.records.exchange_model import ExchangeModel, ExchangeSetup
from srifty.records.job import Job
from srifty.records.job_profile import BatchTiming, ContentTiming, GradientBucket, JobProfile
from srifty.records.network_profile import AllReduceSample, NetworkProfile
from srifty.records.offer import Catalog, Dropped, GpuLink, Market, Offer
from srifty.records.plan import Constraints, Goal, Plan
from srifty.records.record import Record
from srifty.records.run import (
    Event,
    Node,
    NodeLost,
    NodeState,
    PriceChanged,
    Replanned,
    Run,
    RunState,
    StateChanged,
    StepsTimed,
)
from srifty.records.spread import Spread
from srifty.records.step_model import JobFit, MachineFit, ProbeAdvice, StepModel
from srifty.records.step_timing import StepTiming

__all__ = [
    "AllReduceSample",
    "BatchTiming",
    "Catalog",
    "Cluster",
    "Constraints",
    "ContentTiming",
    "Dropped",
    "Event",
    "ExchangeModel",
    "ExchangeSetup",
    "Goal",
    "GpuLink",
    "GradientBucket",
    "IterationEstimate",
    "Job",
    "JobEstimate",
    "JobFit",
    "JobProfile",
    "MachineFit",
    "Market",
    "NetworkProfile",
    "Node",
    "NodeGroup",
    "NodeLost",
    "NodeState",
    "Offer",
    "Plan",
    "PriceChanged",
    "ProbeAdvice",
    "Record",
    "Replanned",
    "Run",
    "RunState",
    "Spread",
    "StateChanged",
    "StepModel",
    "StepTiming",
    "StepsTimed",
]
