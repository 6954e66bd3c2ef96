"""The verbs: what Srifty does, each a few lines that open one or two rooms.

This is the only place where rooms meet. A room is imported as a verb enters it, so `import srifty` stays light.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from srifty.errors import InvalidInput
from srifty.records import Catalog, Cluster, Constraints, Job, JobEstimate, JobProfile, NodeGroup, Plan
from srifty.records.cluster_text import parse_cluster_text
from srifty.records.files import checked, read
from srifty.records.offer import Market
from srifty.records.plan import Goal

if TYPE_CHECKING:
    from srifty.predicting.predictor import Predictor

FilePath = str | os.PathLike[str]
Profiles = JobProfile | FilePath | Sequence[JobProfile | FilePath]

MILLION = 1_000_000
LARGEST_COUNT = 10**15
"""Samples beyond this are a slip of the hand, and would not be counted exactly."""
LARGEST_BATCH = 2**31


def offers(catalog: Catalog | FilePath | None = None, **filters: object) -> Catalog:
    """What can be rented, where, for how much, as of when.

    Args:
        catalog: a table of offers of your own (CSV) or a Catalog; None: the snapshot that ships
        filters: those of `Catalog.only`: clouds, regions, zones, instance_types, gpus, markets,
            max_usd_per_hour, min_gpu_memory_bytes

    Raises:
        InvalidInput: the table cannot be read, a name is unknown (with the nearest known), no offer is left
    """
    return _catalog(catalog).only(**filters)  # type: ignore[arg-type]


def profile(
    job: Job | FilePath,
    *,
    device: str | None = None,
    samples_per_step: int | None = None,
    max_seconds: float | None = None,
    on_progress: Callable[[float, str], None] | None = None,
) -> JobProfile:
    """Measure a job on this machine's accelerator, or on its CPU where there is none.

    Args:
        job: a job.toml, whose folder holds the workload's module; or a Job, whose module is looked for in the
            current folder. A job with a command and no workload is measured by running the command there
        device: "cuda", "cpu", ...; None: the current accelerator, else the CPU; a command chooses its own
        samples_per_step: of a command without {batch}, where its batch is not to be seen in its data
        max_seconds: bound on each run of a command [s]; None: 300
        on_progress: called with the share done (0 to 1) and what is being measured

    Raises:
        InvalidInput: the job file, the module or the function cannot be used; PyTorch is not installed
        WorkloadFailed: the training code raised
    """
    from srifty.records.job_file import read_job

    asked = job if isinstance(job, Job) else read_job(job)
    folder = Path.cwd() if isinstance(job, Job) else Path(job).resolve().parent
    if asked.command and asked.workload is None:
        from srifty.profiling.attach import MAX_SECONDS, profile_command

        if device is not None:
            raise InvalidInput(f"device {device!r} is for a workload; a command chooses its device by itself")
        return profile_command(
            asked,
            folder=folder,
            batches=asked.batches,
            samples_per_step=samples_per_step,
            max_seconds=MAX_SECONDS if max_seconds is None else max_seconds,
            on_progress=on_progress,
        )
    if samples_per_step is not None or max_seconds is not None:
        raise InvalidInput("samples_per_step and max_seconds are for a command; this job names a workload")
    if importlib.util.find_spec("torch") is None:
        raise InvalidInput("to measure a job, PyTorch must be installed here: pip install 'srifty[profile]'")
    from srifty.profiling.profiler import profile as measure

    return measure(asked, folder=folder, device=device, on_progress=on_progress)


def sample_profiles(job: str) -> tuple[JobProfile, ...]:
    """The measured sample profiles that ship: resnet50, bert-base, resnet18, on T4, V100 and A100."""
    from srifty.predicting.samples import sample_profiles as shipped

    return shipped(job)


def predict(
    profiles: Profiles,
    on: str | Cluster | Sequence[str | Cluster],
    *,
    batch: int | None = None,
    samples: int = MILLION,
    region: str | None = None,
    market: Market | str = Market.ON_DEMAND,
    estimate_unmeasured: bool = False,
    catalog: Catalog | FilePath | None = None,
) -> tuple[JobEstimate, ...]:
    """How long a job takes on clusters that you name, what it costs, and where the time of a step goes.

    Args:
        profiles: of one job, on each kind of GPU that the clusters have
        on: "4xg4dn.12xlarge", "4xp3.2xlarge,2xg4dn.12xlarge", or clusters whole; one or many
        batch: global batch [samples]; every GPU takes an equal share, in as few micro-steps as its memory
            allows. None: what the profiled job says
        samples: to train on in all
        region: where to rent; None: where each type is cheapest
        market: "on-demand" or "spot"
        estimate_unmeasured: go by published peaks for a GPU without a profile; roughly, and marked as such
        catalog: a table of offers of your own; None: the snapshot that ships

    Returns:
        one estimate a cluster, in the order given

    Raises:
        InvalidInput: an unknown instance type (with the nearest known), a batch that cannot be shared evenly
        NotMeasured: a GPU without a profile, a batch beyond the largest that fits
    """
    from srifty.records.cluster_table import ClusterTable

    offered = _catalog(catalog)
    predictor = _predictor(profiles, offered if estimate_unmeasured else None)
    named = [on] if isinstance(on, str | Cluster) else list(on)
    if not named:
        return ()
    clusters = [
        one if isinstance(one, Cluster) else _cluster(one, offered, predictor, batch, region, market)
        for one in named
    ]
    job = _job(predictor, clusters[0].global_batch, samples)
    estimates = predictor.estimate(ClusterTable.of(clusters), job)
    return tuple(estimates.job(row) for row in range(len(clusters)))


def plan(
    profiles: Profiles,
    *,
    samples: int | None = None,
    batch: int | None = None,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    goal: Goal | str = Goal.CHEAPEST,
    markets: Collection[Market | str] = (Market.ON_DEMAND,),
    clouds: Collection[str] = (),
    regions: Collection[str] = (),
    instance_types: Collection[str] = (),
    gpus: Collection[str] = (),
    max_nodes: int = 16,
    max_gpus: int | None = None,
    confidence: float = 0.9,
    estimate_unmeasured: bool = False,
    catalog: Catalog | FilePath | None = None,
) -> Plan:
    """Choose machines for a job: the cheapest in time, or the fastest within a budget.

    Args:
        profiles: of one job, on each kind of GPU that may be chosen
        samples: to train on in all; None: what the profiled job says
        batch: global batch [samples], met exactly; None: what the profiled job says
        deadline_s: the job must end within [s]; None: whenever
        budget_usd: the job may cost at most [USD]; None: whatever
        goal: "cheapest" or "fastest"
        markets: "on-demand"
        clouds, regions, instance_types, gpus: only these; empty: all
        max_nodes: machines at most
        max_gpus: GPUs at most; None: any number
        confidence: chance with which each limit must be met, from 0.5 to below 1
        estimate_unmeasured: consider GPUs without a profile too, by published peaks; roughly, and marked as such
        catalog: a table of offers of your own; None: the snapshot that ships

    Raises:
        InvalidInput: a limit, a batch or a name that cannot be used
        NotMeasured: no offer has a GPU with a profile
        NoFeasiblePlan: no cluster meets every limit; `nearest` is the one that misses by least
    """
    from srifty.planning.planner import plan as choose

    offered = _catalog(catalog)
    predictor = _predictor(profiles, offered if estimate_unmeasured else None)
    constraints = checked(
        Constraints,
        goal=goal,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        markets=tuple(markets),
        clouds=tuple(clouds),
        regions=tuple(regions),
        instance_types=tuple(instance_types),
        gpus=tuple(gpus),
        max_nodes=max_nodes,
        max_gpus=max_gpus,
        confidence=confidence,
    )
    if Market.SPOT in constraints.markets:
        raise InvalidInput(
            "spot machines cannot be planned yet: how long they last is not known, and a price without that "
            "would mislead; plan with on-demand, and see 'srifty offers --market spot' for the prices"
        )
    return choose(_job(predictor, batch, samples), offered, constraints, predictor)


def _catalog(given: Catalog | FilePath | None) -> Catalog:
    from srifty.clouds.catalog import load

    return given if isinstance(given, Catalog) else load(given)


def _predictor(profiles: Profiles, estimated_for: Catalog | None) -> Predictor:
    """A predictor from profiles; where a catalog is given, from rough ones for its other GPUs too."""
    from srifty.predicting.gpu_scaling import with_estimates
    from srifty.predicting.predictor import Predictor

    given = [profiles] if isinstance(profiles, JobProfile | str | os.PathLike) else profiles
    measured = tuple(one if isinstance(one, JobProfile) else read(one, JobProfile) for one in given)
    return Predictor(measured if estimated_for is None else with_estimates(measured, estimated_for.offers))


def _job(predictor: Predictor, batch: int | None, samples: int | None) -> Job:
    """The profiled job with the batch and length that are asked for."""
    job = predictor.profiles[0].job
    asked: dict[str, object] = {}
    if samples is not None:
        if not 1 <= samples <= LARGEST_COUNT:
            raise InvalidInput(f"{samples} samples to train on; it must be from 1 to {LARGEST_COUNT:.0e}")
        asked = {"sample_count": samples, "step_count": None}
    elif job.sample_count is None and job.step_count is None:
        raise InvalidInput("how much to train is not known: give --samples, data set times epochs")
    if batch is not None:
        if not 1 <= batch <= LARGEST_BATCH:
            raise InvalidInput(f"global batch {batch} [samples]; it must be from 1 to {LARGEST_BATCH}")
        asked["global_batch"] = batch
    elif job.global_batch is None:
        raise InvalidInput("the global batch is not known: give --batch [samples over all GPUs in a step]")
    return job.model_copy(update=asked)


def _cluster(
    text: str,
    catalog: Catalog,
    predictor: Predictor,
    batch: int | None,
    region: str | None,
    market: Market | str,
) -> Cluster:
    """The cluster that the text names, each type where it is cheapest, every GPU with an equal share."""
    named = []
    for count, name in parse_cluster_text(text):
        of_type = catalog.only(
            instance_types=(name,), regions=(region,) if region else (), markets=(market,)
        ).offers
        named.append((count, min(of_type, key=lambda offer: (offer.usd_per_hour, offer.cloud, offer.place))))
    batch = batch or predictor.profiles[0].job.global_batch
    if batch is None:
        raise InvalidInput("the global batch is not known: give --batch [samples over all GPUs in a step]")
    gpu_count = sum(count * offer.gpu_count for count, offer in named)
    share, left = divmod(batch, gpu_count)
    if left or not share:
        below, above = batch - left, batch - left + gpu_count
        near = f"{below} or {above}" if below else f"{above}"
        raise InvalidInput(
            f"batch {batch} cannot be shared evenly by the {gpu_count} GPUs of {text}; near it is {near}"
        )
    largest = min((predictor.batch_range(offer) or (1, share))[1] for _, offer in named)
    fitting = [
        micro
        for micro in range(1, min(share, 100_000) + 1)
        if share % micro == 0 and share // micro <= largest
    ]
    micro_steps = fitting[0] if fitting else 1
    return Cluster(
        groups=tuple(
            NodeGroup(
                offer=offer,
                node_count=count,
                batch_per_gpu=share // micro_steps,
                accumulation_count=micro_steps,
            )
            for count, offer in named
        )
    )
