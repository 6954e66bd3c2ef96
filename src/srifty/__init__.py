"""Srifty: which machines for a PyTorch data-parallel training job, how sure that is, and then to run it.

The public face is the verbs, the records, and `read` and `write`. Nothing heavy is imported before its use.

    import srifty

    plan = srifty.plan(srifty.sample_profiles("resnet50"), samples=115_000_000, batch=256, deadline_s=12 * 3600)
    print(plan.reason)
    srifty.write(plan, "plan.json")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from srifty.errors import (
        CloudRefused,
        InvalidInput,
        NoCapacity,
        NoFeasiblePlan,
        NotMeasured,
        SriftyError,
        WorkloadFailed,
    )
    from srifty.profiling.inside import profile_steps as profile_steps
    from srifty.profiling.lightning_callback import LightningCallback as LightningCallback
    from srifty.profiling.transformers_callback import TransformersCallback as TransformersCallback
    from srifty.records import *
    from srifty.records.files import read, write
    from srifty.verbs import (
        fit,
        fit_network,
        offers,
        plan,
        predict,
        predict_steps,
        probe,
        probe_advice,
        profile,
        sample_profiles,
        trace,
    )

__version__ = "0.1.0"

__all__ = [
    "AllReduceSample",
    "BatchTiming",
    "Catalog",
    "CloudRefused",
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
    "InvalidInput",
    "IterationEstimate",
    "Job",
    "JobEstimate",
    "JobFit",
    "JobProfile",
    "MachineFit",
    "Market",
    "NetworkProfile",
    "NoCapacity",
    "NoFeasiblePlan",
    "Node",
    "NodeGroup",
    "NodeLost",
    "NodeState",
    "NotMeasured",
    "Offer",
    "Plan",
    "PriceChanged",
    "ProbeAdvice",
    "Record",
    "Replanned",
    "Run",
    "RunState",
    "Spread",
    "SriftyError",
    "StateChanged",
    "StepModel",
    "StepTiming",
    "StepsTimed",
    "WorkloadFailed",
    "fit",
    "fit_network",
    "offers",
    "plan",
    "predict",
    "predict_steps",
    "probe",
    "probe_advice",
    "profile",
    "read",
    "sample_profiles",
    "trace",
    "write",
]

_HOMES = {
    # Not in __all__, since they need PyTorch or another guest, which `from srifty import *` must not ask for.
    "srifty.profiling.inside": ("profile_steps",),
    "srifty.profiling.lightning_callback": ("LightningCallback",),
    "srifty.profiling.transformers_callback": ("TransformersCallback",),
    "srifty.verbs": (
        "fit",
        "fit_network",
        "offers",
        "plan",
        "predict",
        "predict_steps",
        "probe",
        "probe_advice",
        "profile",
        "sample_profiles",
        "trace",
    ),
    "srifty.records.files": ("read", "write"),
    "srifty.errors": (
        "CloudRefused",
        "InvalidInput",
        "NoCapacity",
        "NoFeasiblePlan",
        "NotMeasured",
        "SriftyError",
        "WorkloadFailed",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import what is asked for, when it is asked for."""
    if name not in __all__ and name not in _HOME_OF:
        raise AttributeError(f"module 'srifty' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF.get(name, "srifty.records")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME_OF, "__version__"})
