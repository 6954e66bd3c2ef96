"""A record's file is the record: nothing is lost, nothing strange is let in, nothing is half written."""

from __future__ import annotations

import json
import os
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import srifty
from srifty.errors import InvalidInput
from srifty.records import Job, Record, Spread
from srifty.records.files import checked, from_json, read, record_named, to_json, write, write_text
from tests.records.strategies import any_record

SPREAD = Spread(p10=1, p50=2, p90=3, mean=2, sample_count=5)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(any_record)
def test_a_round_trip_through_a_file_is_the_identity(record):
    assert from_json(to_json(record), type(record)) == record


def test_a_file_names_its_record_and_version(tmp_path):
    write(SPREAD, tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["format"] == "srifty/spread/1"
    assert read(tmp_path / "x.json", Spread) == SPREAD
    assert srifty.read(tmp_path / "x.json") == SPREAD


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "a list"),
        ("null", "null"),
        ("{}", "no field 'format'"),
        ('{"format": 3}', "has format 3"),
        ('{"format": "srifty/spread/2"}', "unknown version"),
        ('{"format": "srifty/plan/1"}', "expected 'srifty/spread/1'"),
        ('{"format": "srifty/spread/1", "p10": 1}', "'p50' is missing"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(text, said):
    with pytest.raises(InvalidInput, match=said):
        from_json(text, Spread, name="f.json")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("p50", "2", "p50 is '2'"),
        ("p50", float("nan"), "p50 is nan"),
        ("p50", float("inf"), "p50 is inf"),
        ("p50", 9.0, "percentiles must rise"),
        ("sample_count", 0, "sample_count is 0"),
        ("sample_count", 1.5, "sample_count is 1.5"),
        ("surprise", 1, "unknown field 'surprise'"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_field(field, value, said):
    fields = json.loads(to_json(SPREAD)) | {field: value}
    with pytest.raises(InvalidInput, match=said):
        from_json(json.dumps(fields), Spread)


def test_an_unknown_field_deep_inside_is_named_with_its_place(make_offer):
    fields = json.loads(
        to_json(srifty.Cluster(groups=(srifty.NodeGroup(offer=make_offer(), node_count=1, batch_per_gpu=1),)))
    )
    fields["groups"][0]["offer"]["colour"] = "red"
    with pytest.raises(InvalidInput, match=r"groups\.0\.offer\.colour"):
        from_json(json.dumps(fields), srifty.Cluster)


@settings(max_examples=200)
@given(st.binary(max_size=60) | st.text(max_size=60))
def test_any_other_text_is_refused_in_one_line(text):
    with pytest.raises(InvalidInput) as caught:
        from_json(text, Spread)
    assert "\n" not in str(caught.value)


def test_reading_says_what_stands_in_the_way(tmp_path):
    with pytest.raises(InvalidInput, match="no such file"):
        read(tmp_path / "none.json", Spread)
    with pytest.raises(InvalidInput, match="is a directory"):
        read(tmp_path, Spread)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not a text file"):
        read(tmp_path / "bytes", Spread)
    with pytest.raises(InvalidInput, match="cannot read"):
        read("a\0b", Spread)


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path, monkeypatch):
    target = tmp_path / "x.json"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInput, match="no space left"):
        write(SPREAD, target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupted_write_leaves_the_old_file_and_no_part(tmp_path, monkeypatch):
    target = tmp_path / "x.json"
    target.write_text("old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(SPREAD, target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_writing_says_what_stands_in_the_way(tmp_path):
    with pytest.raises(InvalidInput, match="no such file or directory"):
        write(SPREAD, tmp_path / "none" / "x.json")
    with pytest.raises(InvalidInput, match="is a directory"):
        write(SPREAD, tmp_path)


def test_writing_keeps_a_link_and_the_old_file_s_mode(tmp_path):
    target, link = tmp_path / "x.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_text("new", link)
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_new_file_can_be_read_as_any_new_file_can(tmp_path):
    write_text("new", tmp_path / "a")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


RECORDS = [
    noun
    for name in srifty.records.__all__
    if isinstance(noun := getattr(srifty.records, name), type)
    and issubclass(noun, Record)
    and noun is not Record
]


@pytest.mark.parametrize("noun", RECORDS)
def test_every_record_has_a_schema_that_names_its_format(noun):
    assert record_named(noun.__name__) is noun
    schema = noun.json_schema()
    assert schema["properties"]["format"] == {"const": noun.format()}
    assert schema["additionalProperties"] is False


def test_an_unknown_record_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match=r"there is no record 'plam'; there are .*plan"):
        record_named("plam")


def test_records_are_frozen(make_offer):
    with pytest.raises(ValueError, match="frozen"):
        make_offer().usd_per_hour = 2.0


def test_what_a_user_gives_is_refused_in_plain_words():
    with pytest.raises(InvalidInput, match="give sample_count or step_count, not both"):
        checked(Job, name="a", sample_count=1, step_count=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"p50": [{"instance_type": "x" * 500}] * 40},
        {"p50": {"instance_type": "x" * 500}},
        {"p50": "x" * 500},
        {"p50": [1.0] * 500},
        {"x" * 500: 1},
        {"format": {"of": "x" * 500}},
        {"format": "srifty/spread/" + "2" * 500},
    ],
)
def test_what_is_refused_is_not_echoed_at_length(fields):
    with pytest.raises(InvalidInput) as refused:
        from_json(json.dumps(json.loads(to_json(SPREAD)) | fields), Spread, name="f.json")
    assert len(str(refused.value)) < 220
    assert "{" not in str(refused.value)
