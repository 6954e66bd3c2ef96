"""Hypothesis strategies that make any valid record."""

from __future__ import annotations

from datetime import UTC, date, datetime

from hypothesis import strategies as st

from srifty import records as r

name = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
count = st.integers(1, 2**40)
positive = st.floats(1e-12, 1e15)
not_negative = st.floats(0, 1e15)
share = st.floats(0, 1)
rate = st.floats(1e3, 1e15)
phase_s = st.floats(1e-9, 1e6)
instant = st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))
day = st.dates(date(2000, 1, 1), date(2100, 1, 1))


def maybe(strategy):
    return st.none() | strategy


@st.composite
def spreads(draw, values=not_negative):
    p10, p50, p90 = sorted(draw(st.tuples(values, values, values)))
    return r.Spread(p10=p10, p50=p50, p90=p90, mean=draw(values), sample_count=draw(count))


jobs = st.builds(
    r.Job,
    name=name,
    workload=maybe(st.from_regex(r"[a-z_]{1,8}(\.[a-z]{1,5})?:[a-z_]{1,8}", fullmatch=True)),
    command=st.lists(name, max_size=3).map(tuple),
    batches=st.lists(count, max_size=3).map(tuple),
    global_batch=maybe(st.integers(1, 2**31)),
    sample_count=maybe(st.integers(1, 10**15)),
)
offers = st.builds(
    r.Offer,
    cloud=name,
    region=name,
    zone=maybe(name),
    instance_type=name,
    gpu=name,
    gpu_count=st.integers(1, 16),
    gpu_memory_bytes=count,
    vcpu_count=count,
    memory_bytes=maybe(count),
    network_bytes_per_s=maybe(rate),
    network_burst_bytes_per_s=maybe(rate),
    gpu_link=maybe(st.sampled_from(r.GpuLink)),
    gpu_link_bytes_per_s=maybe(rate),
    market=st.sampled_from(r.Market),
    usd_per_hour=st.floats(1e-6, 1e6),
    price_as_of=day,
    source=name,
    interruptions_per_hour=maybe(not_negative),
    node_limit=maybe(count),
)
dropped = st.builds(r.Dropped, why=name, count=st.integers(0, 2**40))
catalogs = st.builds(
    r.Catalog,
    offers=st.lists(offers, max_size=3).map(tuple),
    taken_at=day,
    sources=st.lists(name, max_size=2).map(tuple),
    dropped=st.lists(dropped, max_size=2).map(tuple),
)


@st.composite
def clusters(draw):
    accumulation = draw(count)
    groups = draw(
        st.lists(
            st.builds(
                r.NodeGroup,
                offer=offers,
                node_count=count,
                batch_per_gpu=count,
                accumulation_count=st.just(accumulation),
            ),
            min_size=1,
            max_size=3,
        )
    )
    return r.Cluster(groups=tuple(groups))


@st.composite
def job_profiles(draw):
    batches = sorted(draw(st.sets(st.integers(1, 2**20), min_size=1, max_size=3)))
    timings = tuple(
        r.BatchTiming(
            batch=batch,
            forward_s=draw(spreads(phase_s)),
            backward_s=draw(spreads(phase_s)),
            optimizer_s=draw(spreads(phase_s)),
            data_wait_s=draw(maybe(spreads(phase_s))),
            other_s=draw(maybe(spreads(phase_s))),
            peak_memory_bytes=draw(maybe(count)),
        )
        for batch in batches
    )
    buckets = draw(st.lists(st.builds(r.GradientBucket, gradient_bytes=count, ready_at=share), max_size=3))
    return r.JobProfile(
        job=draw(jobs),
        gpu=draw(name),
        gpu_memory_bytes=draw(maybe(count)),
        max_batch=batches[-1] + draw(st.integers(0, 100)),
        timings=timings,
        buckets=tuple(buckets),
        trainable_bytes=draw(count) if buckets else 0,
        total_bytes=draw(maybe(count)),
        checkpoint_bytes=draw(maybe(count)),
        assumptions=tuple(draw(st.lists(name, max_size=2))),
        versions=draw(st.dictionaries(name, name, max_size=2)),
        hardware=draw(name),
        taken_at=draw(instant),
    )


iteration_estimates = st.builds(
    r.IterationEstimate,
    cluster=clusters(),
    duration_s=spreads(),
    compute_s=spreads(),
    exposed_allreduce_s=spreads(),
    waiting_s=spreads(),
    slowest_group=st.integers(0, 3),
    extrapolated=st.lists(name, max_size=2).map(tuple),
)
job_estimates = st.builds(
    r.JobEstimate,
    iteration=iteration_estimates,
    step_count=count,
    samples_per_s=spreads(),
    duration_s=spreads(),
    cost_usd=spreads(),
    interruption_count=not_negative,
    chance_in_time=maybe(share),
    chance_in_budget=maybe(share),
)
constraints = st.builds(
    r.Constraints,
    goal=st.sampled_from(r.Goal),
    deadline_s=maybe(positive),
    budget_usd=maybe(positive),
    markets=st.lists(st.sampled_from(r.Market), min_size=1, max_size=2).map(tuple),
    clouds=st.lists(name, max_size=2).map(tuple),
    max_nodes=count,
    max_gpus=maybe(count),
    confidence=st.floats(0.5, 0.999),
)


@st.composite
def plans(draw):
    estimate = draw(job_estimates)
    return r.Plan(
        job=draw(jobs),
        constraints=draw(constraints),
        cluster=estimate.iteration.cluster,
        estimate=estimate,
        runners_up=tuple(draw(st.lists(job_estimates, max_size=1))),
        candidate_count=draw(count),
        dropped=tuple(draw(st.lists(dropped, max_size=2))),
        bound=draw(not_negative),
        gap=draw(not_negative),
        reason=draw(name),
        assumptions=tuple(draw(st.lists(name, max_size=2))),
        catalog_taken_at=draw(day),
    )


samples = st.builds(
    r.AllReduceSample,
    instance_types=st.lists(name, min_size=1, max_size=2).map(tuple),
    node_count=count,
    gpu_count=count,
    backend=name,
    backend_version=maybe(name),
    link_bytes_per_s=maybe(positive),
    message_bytes=count,
    duration_s=positive,
    repeat=st.integers(0, 9),
)
network_profiles = st.builds(
    r.NetworkProfile, samples=st.lists(samples, min_size=1, max_size=2).map(tuple), taken_at=instant
)
step_timings = st.builds(
    r.StepTiming,
    job=name,
    gpu=name,
    instance_type=name,
    layout=st.lists(st.integers(1, 16), min_size=1, max_size=4).map(tuple),
    batch_per_gpu=count,
    step_s=positive,
    exposed_allreduce_s=maybe(not_negative),
    gradient_bytes=maybe(count),
)
nodes = st.builds(
    r.Node,
    node_id=name,
    offer=offers,
    state=st.sampled_from(r.NodeState),
    started_at=instant,
    ended_at=maybe(instant),
)
runs = st.builds(
    r.Run,
    run_id=name,
    plan=plans(),
    state=st.sampled_from(r.RunState),
    nodes=st.lists(nodes, max_size=2).map(tuple),
    samples_done=st.integers(0, 2**40),
    cost_usd=not_negative,
    started_at=instant,
)
events = st.one_of(
    st.builds(r.StepsTimed, at=instant, node_id=name, first_step=st.integers(0, 9), step_s=spreads()),
    st.builds(r.NodeLost, at=instant, node_id=name, why=name),
    st.builds(r.PriceChanged, at=instant, offer=offers, old_usd_per_hour=not_negative),
    st.builds(
        r.StateChanged, at=instant, old=st.sampled_from(r.RunState), new=st.sampled_from(r.RunState), why=name
    ),
)


def numbers(size):
    """So many numbers, of which a few are drawn and come again: hundreds of draws are too many for an example."""
    drawn = st.lists(st.floats(-99, 99), min_size=1, max_size=5)
    return drawn.map(lambda few: tuple((few * size)[:size]))


machine_fits = st.builds(
    r.MachineFit,
    instance_type=name,
    gpu=name,
    mean=numbers(13),
    covariance_root=numbers(91),
    node_count=st.just(4),
    gpu_count=st.integers(9, 36),
    gpus_per_node=st.just(9),
    unprobed_band=st.floats(0.1, 99),
)
job_fits = st.builds(
    r.JobFit,
    job=name,
    instance_type=name,
    gpu=name,
    gradient_bytes=maybe(positive),
    knots=st.just((1.0, 2.0)),
    smallest_batch=st.just(1),
    largest_batch=st.integers(1, 9),
    best=numbers(15),
    anchors=st.just(((0.0, 1.0, 1.0, 0.0),)),
    shift=numbers(21),
    covariance_root=numbers(231),
    band=st.floats(0.1, 99),
    layout_count=st.integers(1, 9),
)


@st.composite
def step_models(draw):
    job = draw(job_fits)
    if job.gradient_bytes is None and draw(st.booleans()):
        job = job.model_copy(update={"learned_bytes": draw(positive), "learned_bytes_sd": draw(positive)})
    machine = draw(machine_fits).model_copy(update={"instance_type": job.instance_type, "gpu": job.gpu})
    return r.StepModel(machines=(machine,), jobs=(job,), row_count=draw(count))


probe_advice = st.builds(
    r.ProbeAdvice,
    job=name,
    instance_type=name,
    gpu=name,
    layouts=st.just(((1, 1), (4,))),
    doubt_now=not_negative,
    doubt_then=not_negative,
)
any_record = st.one_of(
    step_models(),
    probe_advice,
    spreads(),
    jobs,
    offers,
    catalogs,
    clusters(),
    job_profiles(),
    iteration_estimates,
    job_estimates,
    constraints,
    plans(),
    network_profiles,
    step_timings,
    runs,
    events,
)
