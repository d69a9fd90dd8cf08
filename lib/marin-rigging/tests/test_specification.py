"""Reading fleets from YAML: what is written comes back, and what is wrong is found by line and field."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_rigging import Fleet, Job, Pool, catalog
from marin_rigging.errors import SpecError

GOOD = """\
name: laptop
pools:
  - name: here
    type: cpu
    ranks: 4
jobs:
  - name: hello
    pool: here
    command: [echo, "1"]
    env: {GREETING: "yes"}
"""

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    types = st.sampled_from([a.name for a in catalog()])
    pools = tuple(
        Pool(name=name, type=draw(types), ranks=draw(st.none() | st.integers(1, 99)))
        for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    )
    jobs = tuple(
        Job(
            name=name,
            pool=draw(st.sampled_from(pools)).name,
            command=tuple(draw(st.lists(TEXTS, min_size=1, max_size=3))),
            env=draw(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), TEXTS, max_size=3)),
            cwd=draw(st.none() | TEXTS),
        )
        for name in draw(st.lists(NAMES, max_size=3, unique=True))
    )
    return Fleet(name=draw(NAMES), pools=pools, jobs=jobs)


def as_yaml(fleet: Fleet) -> str:
    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return {name: plain(v) for name, v in fields.items() if v is not None}
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return dict(value) if isinstance(value, dict) else value

    return yaml.safe_dump(plain(fleet), allow_unicode=True)


@given(fleet=fleets())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_fleet_that_is_written_is_read_back(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(as_yaml(fleet), encoding="utf-8")
    assert Fleet.read(path) == fleet


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ranks: 4", "rank: 4", ":5: fleet.pools[0] has no field 'rank'; did you mean 'ranks'?"),
        ("ranks: 4", "colour: red", ":5: fleet.pools[0] has no field 'colour'; its fields are name, provider, type"),
        ("ranks: 4", "ranks: four", ":5: fleet.pools[0].ranks must be a whole number, not 'four'"),
        ("ranks: 4", "ranks: 4.0", ":5: fleet.pools[0].ranks must be a whole number, not '4.0'"),
        ("ranks: 4", "ranks: true", ":5: fleet.pools[0].ranks must be a whole number, not 'true'"),
        ("ranks: 4", "ranks: 0", ":5: fleet.pools[0]: ranks=0 must be at least 1"),
        ("ranks: 4", "ranks:", ":5: fleet.pools[0].ranks must be a whole number, not nothing"),
        ("type: cpu", "type: v5p-48", ":4: fleet.pools[0]: accelerator type 'v5p-48' does not exist"),
        ("name: hello", "name: Hello", ":7: fleet.jobs[0]: name='Hello' must be"),
        ("pool: here", "pool: there", "fleet: job 'hello' wants pool 'there', pools are here"),
        ('"1"', "1", ":9: fleet.jobs[0].command[1] must be text, not '1'; quote it"),
        ('"yes"', "yes", ":10: fleet.jobs[0].env.GREETING must be text, not 'yes'; quote it"),
        ("{GREETING", "{A: b, A: c, GREETING", ":10: fleet.jobs[0].env.A stands twice"),
        ('[echo, "1"]', "echo 1", ":9: fleet.jobs[0].command must be a list, not 'echo 1'"),
        ('{GREETING: "yes"}', "[GREETING]", ":10: fleet.jobs[0].env must be fields with values, not a list"),
        ("name: laptop", "", "fleet lacks 'name'"),
        ("  - name: here", "  - {name: here", "is not YAML"),
    ],
)
def test_a_mistake_is_found_by_line_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "fleet.yaml"
    assert GOOD.count(old) >= 1
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SpecError) as refused:
        Fleet.read(path)
    assert str(refused.value).startswith(f"{path}:")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"name: \xff", "is not UTF-8 text; the byte at 6 is wrong"),
        (b"- a\n- b\n", ":1: fleet must be fields with values, not a list"),
        (b"name: \x00", "is not YAML"),
    ],
)
def test_a_file_that_is_no_fleet_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as refused:
        Fleet.read(path)
    assert message in str(refused.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.yaml: cannot be read: No such file"):
        Fleet.read(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        Fleet.read(tmp_path)
