"""The verbs: what Srifty does, each a few lines that open one or two rooms.

This is the only place where rooms meet. A room is imported as a verb enters it, so `import srifty` stays light.
"""

from __future__ import annotations

import contextlib
import importlib.util
import operator
import os
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srifty.errors import InvalidInput
from srifty.records import (
    Catalog,
    Cluster,
    Constraints,
    ExchangeModel,
    Job,
    JobEstimate,
    JobProfile,
    NetworkProfile,
    Plan,
    ProbeAdvice,
    StepModel,
    StepTiming,
)
from srifty.records.files import checked, read
from srifty.records.job import LARGEST_BATCH, LARGEST_COUNT
from srifty.records.offer import Market
from srifty.records.plan import Goal

if TYPE_CHECKING:
    from srifty.predicting.predictor import Predictor
    from srifty.records.step_table import StepEstimates, StepGrid, StepTable

FilePath = str | os.PathLike[str]
Profiles = JobProfile | FilePath | Sequence[JobProfile | FilePath]

Names = str | Collection[str] | None
"""One name, several, or none, which allows all."""

MILLION = 1_000_000


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
    find_max_batch: bool = False,
    max_batch: int | None = None,
    samples_per_step: int | None = None,
    max_seconds: float | None = None,
    on_progress: Callable[[float, str], None] | None = None,
) -> JobProfile:
    """Measure a job on this machine's accelerator, or on its CPU where there is none.

    Args:
        job: a job.toml, whose folder holds the workload's module; or a Job, whose module is looked for in the
            current folder. A job with a command and no workload is measured by running the command there
        device: "cuda", "cpu", ...; None: the current accelerator, else the CPU; a command chooses its own
        find_max_batch: search the largest batch that fits, with a margin, each try in a fresh process
        max_batch: no batch above this [samples on one GPU; what stands for {batch} in a command]
        samples_per_step: of a command without {batch}, where its batch is not to be seen in its data
        max_seconds: bound on each run of a command [s]; None: 300
        on_progress: called with the share done (0 to 1) and what is being measured

    Raises:
        InvalidInput: the job file, the module or the function cannot be used; PyTorch is not installed
        WorkloadFailed: the training code raised; `partial` is what a command gave before that
        NotMeasured: no batch fits; of a command, nothing stepped
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
            find_max_batch=find_max_batch,
            max_batch=max_batch,
            on_progress=on_progress,
        )
    if samples_per_step is not None or max_seconds is not None:
        raise InvalidInput("samples_per_step and max_seconds are for a command; this job names a workload")
    if importlib.util.find_spec("torch") is None:
        raise InvalidInput("to measure a job, PyTorch must be installed here: pip install 'srifty[profile]'")
    from srifty.profiling.profiler import profile as measure

    return measure(
        asked,
        folder=folder,
        device=device,
        find_max_batch=find_max_batch,
        max_batch=max_batch,
        on_progress=on_progress,
    )


def probe(
    *,
    instance_type: str | None = None,
    backend: str | None = None,
    max_seconds: float = 120.0,
    max_message_bytes: int = 256 * 2**20,
    on_progress: Callable[[float, str], None] | None = None,
) -> NetworkProfile | None:
    """Measure AllReduce between the ranks that torchrun started, this one among them.

    Args:
        instance_type: of these machines, as the catalog calls it, so that plans find what was measured
        backend: "nccl" or "gloo"; None: nccl where every rank has a GPU of its own
        max_seconds: bound on the measuring [s], and so on what the machines cost
        max_message_bytes: largest message [bytes]
        on_progress: called on rank 0 with the share of the time used (0 to 1) and what is being measured

    Returns:
        on rank 0 what was measured, on the others None

    Raises:
        InvalidInput: no other rank to exchange with; PyTorch is not installed; a limit that is none
        NotMeasured: a rank is gone, or does not answer in time
    """
    _check_torch_for_exchanges()
    from srifty.profiling.network_probe import measure_network

    return measure_network(
        instance_type=instance_type,
        backend=backend,
        max_seconds=max_seconds,
        max_message_bytes=max_message_bytes,
        on_progress=on_progress,
    )


def start_ranks(count: int, arguments: Sequence[str], *, backend: str | None, max_seconds: float) -> int:
    """Run `srifty` with these arguments in several ranks on this machine; the exit status.

    Args:
        count: ranks
        arguments: of each, the verb in front
        backend, max_seconds: what `probe` will be asked for, checked before the ranks are started

    Raises:
        InvalidInput: as of `probe`; fewer GPUs than ranks for nccl
        NotMeasured: a rank was ended from outside
    """
    _check_torch_for_exchanges()
    from srifty.profiling.rank_starter import start_ranks as start

    return start(count, arguments, backend=backend, max_seconds=max_seconds)


def fit_network(
    files: FilePath | NetworkProfile | Sequence[FilePath | NetworkProfile],
    *,
    instance_type: str | None = None,
    catalog: Catalog | FilePath | None = None,
) -> ExchangeModel:
    """Learn from measured exchanges how long they take, for `predict` and `plan`.

    Args:
        files: of `probe`, tables (CSV), or what nccl-tests' all_reduce_perf printed; two or more measuring
            sessions tell how much sessions differ
        instance_type: of the machines of files that do not say it
        catalog: where the machines' networks and links are looked up; None: the snapshot that ships

    Raises:
        InvalidInput: a file cannot be read; XGBoost is not installed
    """
    from srifty.predicting.exchange_fit import fit_exchange
    from srifty.records.exchange_file import read_exchanges

    given = [files] if isinstance(files, NetworkProfile | str | os.PathLike) else files
    profiles = [
        one if isinstance(one, NetworkProfile) else read_exchanges(one, instance_type=instance_type)
        for one in given
    ]
    if not profiles:
        raise InvalidInput("there is nothing to fit: give measured exchanges (srifty probe -o net.json)")
    return fit_exchange(profiles, _catalog(catalog).offers, datetime.now(UTC))


def sample_profiles(job: str) -> tuple[JobProfile, ...]:
    """The measured sample profiles that ship: resnet50, bert-base, resnet18, on T4, V100 and A100."""
    from srifty.predicting.samples import sample_profiles as shipped

    return shipped(job)


def predict(
    profiles: Profiles,
    on: str | Cluster | Sequence[str | Cluster],
    *,
    batch: int | None = None,
    accumulation: int | None = None,
    samples: int | None = None,
    region: str | None = None,
    market: Market | str = Market.ON_DEMAND,
    estimate_unmeasured: bool = False,
    model: ExchangeModel | FilePath | None = None,
    catalog: Catalog | FilePath | None = None,
) -> tuple[JobEstimate, ...]:
    """How long a job takes on clusters that you name, what it costs, and where the time of a step goes.

    Args:
        profiles: of one job, on each kind of GPU that the clusters have
        on: "4xg4dn.12xlarge", "4xp3.2xlarge,2xg4dn.12xlarge", or clusters whole; one or many
        batch: global batch [samples], of which every GPU takes an equal share; None: what the profiled job says
        accumulation: micro-steps to a step; None: as few as each GPU's memory allows (a plan tries all)
        samples: to train on in all; None: what the profiled job says, or a million
        region: where to rent; None: where each type is cheapest
        market: "on-demand" or "spot"
        estimate_unmeasured: go by published peaks for a GPU without a profile; roughly, and marked as such
        model: what was learned from measured exchanges (`fit_network`); machines not measured go by the formula
        catalog: a table of offers of your own; None: the snapshot that ships

    Returns:
        one estimate a cluster, in the order given

    Raises:
        InvalidInput: an unknown instance type (with the nearest known), a batch that cannot be shared evenly
        NotMeasured: a GPU without a profile, a batch beyond the largest that fits
    """
    from srifty.planning.named_cluster import Where, named_cluster
    from srifty.records.cluster_table import ClusterTable

    offered = _catalog(catalog)
    predictor = _predictor(profiles, offered if estimate_unmeasured else None, model)
    own = predictor.profiles[0].job
    asked = _whole("batch", batch, LARGEST_BATCH) or own.global_batch
    micro_steps = _whole("accumulation", accumulation, LARGEST_BATCH)
    where = Where(regions=_names(region), market=checked(Constraints, markets=(market,)).markets[0])
    named = [on] if isinstance(on, str | Cluster) else list(on)
    clusters = [
        _whole_cluster(one, batch)
        if isinstance(one, Cluster)
        else named_cluster(str(one), offered, predictor.batch_range, asked, micro_steps, where)
        for one in named
    ]
    if not clusters:
        return ()
    if samples is None and own.sample_count is None and own.step_count is None:
        samples = MILLION
    job = _job(predictor, clusters[0].global_batch, samples)
    estimates = predictor.estimate(ClusterTable.of(clusters), job)
    return tuple(
        estimates.job(row).model_copy(update={"assumptions": predictor.assumptions(cluster)})
        for row, cluster in enumerate(clusters)
    )


def trace(
    profiles: Profiles,
    cluster: Cluster,
    *,
    estimate_unmeasured: bool = False,
    model: ExchangeModel | FilePath | None = None,
    catalog: Catalog | FilePath | None = None,
) -> dict[str, Any]:
    """The median iteration of a cluster as a picture: JSON of Chrome's trace format, for Perfetto.

    Args:
        profiles: of one job, on each kind of GPU that the cluster has
        cluster: as an estimate names it (`predict(...)[0].iteration.cluster`)
        estimate_unmeasured, model, catalog: as for `predict`

    Raises:
        NotMeasured: a GPU without a profile, a batch beyond the largest that fits
    """
    from srifty.reporting.chrome_trace import chrome_trace

    predictor = _predictor(profiles, _catalog(catalog) if estimate_unmeasured else None, model)
    title = f"one predicted iteration of {predictor.profiles[0].job.name} on {cluster}"
    return chrome_trace(predictor.trace(cluster), title=title)


def plan(
    profiles: Profiles,
    *,
    samples: int | None = None,
    batch: int | None = None,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    goal: Goal | str = Goal.CHEAPEST,
    markets: Names = (Market.ON_DEMAND,),
    clouds: Names = (),
    regions: Names = (),
    instance_types: Names = (),
    gpus: Names = (),
    max_nodes: int = 16,
    max_gpus: int | None = None,
    confidence: float = 0.9,
    estimate_unmeasured: bool = False,
    model: ExchangeModel | FilePath | None = None,
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
        model: what was learned from measured exchanges (`fit_network`); machines not measured go by the formula
        catalog: a table of offers of your own; None: the snapshot that ships

    Raises:
        InvalidInput: a limit, a batch or a name that cannot be used
        NotMeasured: no offer has a GPU with a profile
        NoFeasiblePlan: no cluster meets every limit; `nearest` is the one that misses by least
    """
    from srifty.planning.planner import plan as choose

    offered = _catalog(catalog)
    predictor = _predictor(profiles, offered if estimate_unmeasured else None, model)
    constraints = checked(
        Constraints,
        goal=goal,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        markets=_names(markets),
        clouds=_names(clouds),
        regions=_names(regions),
        instance_types=_names(instance_types),
        gpus=_names(gpus),
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


def fit(steps: FilePath | StepTable | Sequence[StepTiming]) -> StepModel:
    """Learn from measured steps of any jobs on any machines.

    Args:
        steps: a CSV file (see docs/models.md for its columns), or the timings themselves

    Raises:
        InvalidInput: the file cannot be read, or holds fewer than two rows
    """
    from srifty.predicting.step_fit import fit_steps
    from srifty.records.step_file import read_steps
    from srifty.records.step_table import StepTable

    if isinstance(steps, StepTable):
        table = steps
    elif isinstance(steps, str | os.PathLike):
        table = read_steps(steps)
    else:
        table = StepTable.of(steps)
    if not len(table):
        raise InvalidInput("no measured step to learn from")
    return fit_steps(table)


def predict_steps(model: StepModel | FilePath, grid: StepGrid) -> StepEstimates:
    """Tell each row of a grid from what was learned; `records.step_file.read_grid` reads one from a file.

    Raises:
        InvalidInput: the model's file cannot be read
        NotMeasured: a job of which no step was measured
    """
    from srifty.predicting.step_model import predict_steps as tell

    return tell(model if isinstance(model, StepModel) else read(model, StepModel), grid)


def probe_advice(model: StepModel | FilePath) -> tuple[ProbeAdvice, ...]:
    """Which clusters to measure next, of each job on each kind of machine."""
    from srifty.predicting.probe_advice import advise

    return advise(model if isinstance(model, StepModel) else read(model, StepModel))


def _check_torch_for_exchanges() -> None:
    if importlib.util.find_spec("torch") is None:
        raise InvalidInput(
            "to measure exchanges, PyTorch must be installed here: pip install 'srifty[profile]'"
        )


def _catalog(given: Catalog | FilePath | None) -> Catalog:
    from srifty.clouds.catalog import load

    return given if isinstance(given, Catalog) else load(given)


def _predictor(
    profiles: Profiles, estimated_for: Catalog | None, model: ExchangeModel | FilePath | None
) -> Predictor:
    """A predictor from profiles; where a catalog is given, from rough ones for its other GPUs too."""
    from srifty.predicting.gpu_scaling import with_estimates
    from srifty.predicting.predictor import Predictor

    given = [profiles] if isinstance(profiles, JobProfile | str | os.PathLike) else profiles
    measured = tuple(one if isinstance(one, JobProfile) else read(one, JobProfile) for one in given)
    learned = model if model is None or isinstance(model, ExchangeModel) else read(model, ExchangeModel)
    if estimated_for is not None:
        measured = with_estimates(measured, estimated_for.offers)
    return Predictor(measured, exchange_model=learned)


def _job(predictor: Predictor, batch: int | None, samples: int | None) -> Job:
    """The profiled job with the batch and length that are asked for."""
    jobs = [profile.job for profile in predictor.profiles]
    batch = _whole("batch", batch, LARGEST_BATCH)
    samples = _whole("samples", samples, LARGEST_COUNT)
    if samples is None and len({(job.sample_count, job.step_count) for job in jobs}) > 1:
        raise InvalidInput(
            "the profiles disagree on how much to train: give --samples, data set times epochs"
        )
    if batch is None and len({job.global_batch for job in jobs}) > 1:
        raise InvalidInput("the profiles disagree on the global batch: give --batch [samples over all GPUs]")
    fields = jobs[0].model_dump()
    if samples is not None:
        fields |= {"sample_count": samples, "step_count": None}
    if batch is not None:
        fields["global_batch"] = batch
    job = checked(Job, **fields)
    if job.sample_count is None and job.step_count is None:
        raise InvalidInput("how much to train is not known: give --samples, data set times epochs")
    if job.global_batch is None:
        raise InvalidInput("the global batch is not known: give --batch [samples over all GPUs in a step]")
    if job.sample_count is not None and job.global_batch > job.sample_count:
        raise InvalidInput(
            f"global batch {job.global_batch} is larger than the {job.sample_count} samples to train on"
        )
    return job


def _whole_cluster(cluster: Cluster, batch: int | None) -> Cluster:
    if batch is not None and batch != cluster.global_batch:
        raise InvalidInput(
            f"batch {batch} is asked, but the cluster given takes {cluster.global_batch} a step"
        )
    return cluster


def _whole(name: str, given: int | None, largest: int) -> int | None:
    """A whole number from 1; numpy's integers and floats such as 1e6 are numbers too."""
    if given is None:
        return None
    value: object = given
    if not isinstance(given, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            value = int(given) if isinstance(given, float) and given == int(given) else operator.index(given)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise InvalidInput(f"{name} is {given!r}; it must be a whole number of samples from 1 to {largest}")
    return value


def _names(given: Names) -> tuple[str, ...]:
    """One name, several or none."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)
