"""What is learned from exchanges: a known network is found again, bands hold, nothing is mixed silently."""

from __future__ import annotations

import time

import numpy as np
import pytest
from benchmarks.accuracy import exchanges
from benchmarks.accuracy.measured import data_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.predicting.exchange_kit import AT, SIZES, seconds, session

from srifty.errors import InvalidInput
from srifty.predicting.exchange_formula import Exchanges
from srifty.predicting.exchange_model import LearnedExchange, version_key
from srifty.records import Dropped, ExchangeModel
from srifty.records.files import from_json, to_json

pytest.importorskip("xgboost", reason="fitting needs xgboost-cpu")
from srifty.predicting.exchange_fit import fit_exchange


def columns(nodes, sizes, *, gpus=1.0, rate=1.25e9, concurrency=1.0):
    nodes, sizes, gpus, rate, concurrency = np.broadcast_arrays(nodes, sizes, gpus, rate, concurrency)
    return Exchanges(*(np.array(c, float) for c in (nodes, gpus, sizes, rate, concurrency)))


def fitted(*profiles):
    return LearnedExchange.of(fit_exchange(profiles, (), AT))


def told(learned, nodes, sizes, setup=0, **more):
    return learned.tell(setup, columns(nodes, sizes, **more))


@pytest.fixture(scope="module")
def plain():
    return fitted(session())


@pytest.fixture(scope="module")
def noisy():
    return fitted(session(noise=0.08))


def test_known_latency_and_bandwidth_are_found_again(plain):
    (setup,) = plain.model.setups
    assert setup.latency_s == pytest.approx(50e-6, rel=0.15)
    assert setup.share * setup.link_bytes_per_s == pytest.approx(1e9, rel=0.05)
    for n in (2, 5, 8):
        expected = [seconds(n, size) for size in SIZES]
        assert np.exp(told(plain, n, SIZES).p50) == pytest.approx(expected, rel=0.04)


def test_a_loss_with_more_nodes_is_found_again():
    # 70 % of the rate at 8 machines and 60 % at 16 (aws-ofi-nccl issue 19): a power of 0.22.
    learned = fitted(session(nodes=(2, 4, 8, 16), growth=0.22))
    assert learned.model.setups[0].peer_growth == pytest.approx(0.22, abs=0.05)


def test_a_nominal_rate_is_never_what_is_expected():
    """70 % of the nominal rate at 8 machines, 60 % at 16: learned from 2 to 8, told for 16."""
    link, size, growth = 1.25e9, 2**28, np.log2(70 / 60)
    learned = fitted(session(nodes=(2, 4, 8), rate=0.7 * link * 4**growth, growth=growth, noise=0.02))
    share = [2 * (n - 1) / n * size / float(np.exp(told(learned, n, [size]).p50[0])) / link for n in (8, 16)]
    assert share[0] == pytest.approx(0.70, abs=0.04)
    assert share[1] == pytest.approx(0.60, abs=0.06)


def test_a_size_of_cluster_that_was_not_measured_is_told_from_the_others():
    learned = fitted(session(nodes=(2, 3, 8), noise=0.05))
    for n in (4, 5, 6):
        assert np.exp(told(learned, n, SIZES).p50) == pytest.approx(
            [seconds(n, size) for size in SIZES], rel=0.08
        )


def test_an_80_percent_band_holds_80_percent_of_new_readings(noisy):
    new = session(noise=0.08, seed=7, nodes=(2, 3, 4, 6, 8))
    one = columns([s.node_count for s in new.samples], [s.message_bytes for s in new.samples])
    # The assumed variation between sessions aside, since these are of the same network.
    same = LearnedExchange.of(noisy.model.model_copy(update={"between_session_log_sd": 0.0}))
    band = same.tell(0, one)
    log_s = np.log([s.duration_s for s in new.samples])
    assert 0.74 < ((log_s >= band.p10) & (log_s <= band.p90)).mean() < 0.93


def test_a_second_session_tells_how_much_sessions_differ():
    slow, fast = session(noise=0.03, factor=1.15), session(noise=0.03, factor=1 / 1.15, seed=1)
    one, two = fitted(slow), fitted(slow, fast)
    assert one.model.between_session_log_sd is None
    assert any("one session" in said for said in one.model.assumptions)
    assert two.model.between_session_log_sd == pytest.approx(np.log(1.15) * np.sqrt(2), rel=0.2)
    assert two.model.within_session_log_sd == pytest.approx(0.03, rel=0.15)
    assert two.model.setups[0].session_count == 2
    band = told(two, 4, [2**24])
    assert band.p90[0] - band.p10[0] > 2 * 0.9 * two.model.between_session_log_sd
    assert told(two, 4, [2**24]).p50[0] == pytest.approx(np.log(seconds(4, 2**24)), abs=0.05)


@pytest.mark.parametrize("in_one_file", [True, False])
def test_the_same_readings_under_two_names_are_one_session(in_one_file):
    first = session(noise=0.03, name="log.txt, line 1")
    copy = session(noise=0.03, name="copy.txt, line 40")
    both = (
        (first.model_copy(update={"samples": first.samples + copy.samples}),)
        if in_one_file
        else (first, copy)
    )
    learned, once = fitted(*both).model, fitted(first).model
    assert learned.between_session_log_sd is None
    assert learned.setups == once.setups
    other = session(noise=0.03, factor=1.1, name="copy.txt, line 40", seed=1)
    assert fitted(first, other).model.between_session_log_sd is not None


def test_the_same_file_given_twice_is_one_session():
    one = session(noise=0.03)
    assert fitted(one, one).model.between_session_log_sd is None


def test_versions_are_kept_apart_and_the_newest_tells_and_says_so():
    """41 Gbit/s with one version of NCCL, 10.7 with the next (NVIDIA/nccl issue 209)."""
    old, new = session(version="2.3.7", rate=41e9 / 8), session(version="2.4.2", rate=10.7e9 / 8)
    learned = fitted(old, new)
    assert {s.backend_version for s in learned.model.setups} == {"2.3.7", "2.4.2"}
    chosen = learned.setup_of(frozenset({"small"}), "nccl", True)
    assert learned.model.setups[chosen].backend_version == "2.4.2"
    assert np.exp(told(learned, 4, [2**28], chosen).p50[0]) == pytest.approx(
        seconds(4, 2**28, rate=10.7e9 / 8), rel=0.1
    )
    assert any("2 versions (2.3.7, 2.4.2)" in said for said in learned.model.assumptions)
    assert version_key("2.18.5") > version_key("2.9.9") > version_key(None)
    assert version_key("torch 2.13.0+cu126") == (2, 13, 0)


def test_what_lies_outside_the_measured_range_is_said_and_less_sure(plain):
    inside, far = told(plain, 8, [2**28]), told(plain, 16, [2**30])
    assert not inside.outside
    assert set(far.outside) == {
        "exchange on small: 16 nodes, measured up to 8",
        "exchange on small: message of 1 GiB, measured up to 256 MiB",
    }
    assert far.p90[0] - far.p10[0] > inside.p90[0] - inside.p10[0]
    small = told(plain, 2, [2**30, 2**20, 2**8])
    assert [bool(where[1]) for where in small.outside.values()] == [False, False]
    assert "exchange on small: message of 256 bytes, measured from 1 KiB" in small.outside


def crooked():
    """A network that changes its protocol at 16 KiB and at 16 MiB, so that trees have work."""
    profile = session(nodes=(2, 4, 8), noise=0.02, gpus=2)

    def factor(size):
        return 1.0 if size < 2**14 else 2.0 if size < 2**24 else 3.5

    samples = tuple(
        s.model_copy(update={"duration_s": s.duration_s * factor(s.message_bytes)}) for s in profile.samples
    )
    return profile.model_copy(update={"samples": samples})


@pytest.fixture(scope="module")
def with_trees():
    learned = fitted(crooked())
    assert any(quantile.trees for quantile in learned.model.residuals), "the case no longer needs trees"
    return learned


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 64), st.integers(1, 16), st.floats(2**5, 2**34), st.floats(1e8, 1e10), st.floats(1, 30))
def test_the_laws_hold_with_trees_and_beyond_the_measured_range(with_trees, nodes, gpus, size, rate, more):
    def at(n=nodes, g=gpus, b=size, r=rate, c=1.0):
        return told(with_trees, [n], [b], gpus=g, rate=r, concurrency=c).p50[0]

    assert at(b=size * more) >= at() - 1e-9
    assert at(n=np.ceil(nodes * more)) >= at() - 1e-9
    assert at(g=np.ceil(gpus * more)) >= at() - 1e-9
    assert at(r=rate * more) <= at() + 1e-9
    assert at(c=2.0) >= at() - 1e-9


def test_far_outside_nothing_is_left_of_the_trees(with_trees):
    from srifty.predicting.exchange_formula import log_duration

    one = columns([8], [2.0**60], gpus=2)
    assert with_trees.tell(0, one).p50[0] == pytest.approx(log_duration(one, with_trees.parameters[:1])[0])


def test_a_model_is_a_file_that_tells_the_same_and_loads_at_once(with_trees):
    text = to_json(with_trees.model)
    assert text.startswith('{\n  "format": "srifty/exchange_model/1"')
    start = time.perf_counter()
    again = LearnedExchange.of(from_json(text, ExchangeModel))
    elapsed = time.perf_counter() - start
    assert again.model == with_trees.model
    one = columns(np.tile([2, 4, 7, 8], 10), np.repeat(SIZES, 4), gpus=2)
    assert (again.tell(0, one).p90 == with_trees.tell(0, one).p90).all()
    assert elapsed < 0.5  # 50 ms on a quiet machine


def test_what_is_measured_on_one_rank_is_no_exchange():
    (one, *_) = session().samples
    alone = session().model_copy(
        update={"samples": (one.model_copy(update={"node_count": 1, "gpu_count": 1}),)}
    )
    with pytest.raises(InvalidInput, match="nothing was exchanged"):
        fit_exchange([alone], (), AT)


def test_a_kind_of_machine_measured_little_takes_from_the_others():
    """Two sizes of one machine in four nodes; what more nodes cost is known from another machine."""
    rich = session("rich", nodes=(2, 4, 8, 16), growth=0.25)
    poor = session("poor", nodes=(4,), sizes=(2**24, 2**26), rate=0.5e9, growth=0.25)
    learned = fitted(rich, poor)
    setup = learned.setup_of(frozenset({"poor"}), "nccl", True)
    expected = seconds(16, 2**26, rate=0.5e9, growth=0.25)
    assert np.exp(told(learned, 16, [2**26], setup).p50[0]) == pytest.approx(expected, rel=0.25)


def test_what_a_file_lost_is_said():
    lost = session().model_copy(
        update={"dropped": (Dropped(why="log.txt: lines that are not whole (7)", count=1),)}
    )
    assert "left out: 1, log.txt: lines that are not whole (7)" in fitted(lost).model.assumptions


def test_published_exchanges_of_a_size_left_out_are_told_within_10_percent():
    """docs/accuracy.md has the table."""
    try:
        folder = data_folder()
    except SystemExit as absent:
        pytest.skip(str(absent))
    left = exchanges.left_out(exchanges.published(folder), lambda sample: sample.gpu_count)
    error = [abs(one.told_s["learned"] / one.measured_s - 1) for one in left]
    assert len(error) == 61
    assert np.median(error) < 0.10
    assert np.mean([one.share_in_band for one in left]) > 0.8


def test_an_outlier_does_not_move_the_rest():
    profile = session(repeats=1)
    samples = list(profile.samples)
    samples[17] = samples[17].model_copy(update={"duration_s": samples[17].duration_s * 30})
    learned = fitted(profile.model_copy(update={"samples": tuple(samples)}))
    expected = [seconds(4, size) for size in SIZES]
    assert np.exp(told(learned, 4, SIZES).p50) == pytest.approx(expected, rel=0.06)


def test_measurements_in_another_unit_are_refused_and_not_learned():
    with pytest.raises(InvalidInput, match="nothing plausible can be learned.*share is .*units right"):
        fitted(session(link=1.25))
