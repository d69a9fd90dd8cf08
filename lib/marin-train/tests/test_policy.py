import dataclasses
import logging
from functools import partial

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train import models
from marin_train import policy as policies
from marin_train.checkpoints import named_leaves
from marin_train.configs import Component, DataConfig, MeshConfig, ModelConfig, TrainConfig
from marin_train.errors import ConfigError
from marin_train.policy import Policy, by_name, choose

RUN = TrainConfig(
    model=ModelConfig(
        vocab_size=16, hidden_dim=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, mlp_dim=8, max_seq_len=8
    ),
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=8),
    steps=1,
    batch_size=2,
)

every_policy = st.builds(
    Policy,
    operands=st.sampled_from(["float32", "bfloat16"]),
    attention=st.sampled_from(["reference", "blocked", "dot_product", "splash"]),
    remat=st.sampled_from(["keep", "full", "dots", "named"]),
    scan=st.booleans(),
)


@given(every_policy)
def test_a_policy_survives_its_name_and_its_record(policy):
    assert by_name(policy.name) == policy
    assert Policy.from_dict(policy.to_dict()) == policy


def test_an_unknown_policy_is_refused_with_an_example():
    with pytest.raises(ConfigError, match=r"TrainConfig\.policy='fast'.*float32-reference-keep-unroll"):
        choose(dataclasses.replace(RUN, policy="fast"), rates={})


def test_a_pinned_policy_is_taken_unmeasured(monkeypatch):
    monkeypatch.setattr(policies, "_fastest", lambda *_, **__: pytest.fail("it measured"))
    pinned = "bfloat16-blocked-full-scan"
    assert choose(dataclasses.replace(RUN, policy=pinned), rates={}).name == pinned


@pytest.mark.parametrize(
    ("bfloat16", "operands"), [(8e9, "float32"), (11e9, "float32"), (13e9, "bfloat16"), (80e9, "bfloat16")]
)
def test_operands_are_rounded_only_where_that_pays(monkeypatch, bfloat16, operands):
    monkeypatch.setattr(policies, "_fastest", lambda probes: next(iter(probes)))
    assert choose(RUN, rates={"float32": 10e9, "bfloat16": bfloat16}).operands == operands


def test_every_candidate_is_measured_and_one_of_them_chosen(caplog, monkeypatch):
    rivals = [Policy(attention="blocked", remat=remat, scan=True) for remat in ("full", "named")]
    monkeypatch.setattr(policies, "candidates", lambda *_, **__: rivals)
    with caplog.at_level(logging.INFO, logger="marin_train"):
        chosen = choose(RUN, rates={"float32": 1e9, "bfloat16": 2e9})
    measured = [line.split()[1].rstrip(":") for line in caplog.messages if " ms for " in line]
    assert measured == [policy.name for policy in rivals]
    assert chosen in rivals


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_no_candidate_unrolls_layers_or_keeps_all_they_made_and_candidates_differ(platform):
    found = policies.candidates(RUN, operands="bfloat16", platform=platform)
    assert found
    assert all(policy.scan and policy.remat != "keep" for policy in found)
    assert len(set(found)) == len(found)
    assert {policy.activations for policy in found} == {"float32" if platform == "cpu" else "bfloat16"}


def test_stages_attend_by_what_a_compiler_can_share_out():
    staged = dataclasses.replace(RUN, mesh=MeshConfig(stage=2, data=1))
    found, alone = (policies.candidates(run, operands="bfloat16", platform="tpu") for run in (staged, RUN))
    assert {policy.attention for policy in found} == {"blocked"}
    assert {policy.attention for policy in alone} == {"splash", "blocked"}


def test_the_layers_that_are_measured_are_the_runs_own():
    gradient = policies._layers_probe(RUN, policy=Policy(scan=True), seq_len=8)()
    table = models.family(RUN.model).parameter_table(RUN.model)
    shapes = {p.path: p.shape for p in table if p.path.startswith("layers.")}
    leaves = {f"layers.{name}": leaf for name, leaf in named_leaves(gradient.layers).items()}
    assert {path: leaf.shape for path, leaf in leaves.items()} == shapes


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


def probes(clock, seconds):
    """A probe a policy that takes so long to run; one that takes none cannot run."""

    def build(taken):
        if not taken:
            raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no such product")

        def run():
            clock.now += taken

        return run

    return {policy: partial(build, taken) for policy, taken in seconds.items()}


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(policies, "time", clock)
    return clock


FIRST, SECOND, THIRD = Policy(), Policy(scan=True), Policy(remat="full")


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({FIRST: 0.20, SECOND: 0.10, THIRD: 0.15}, SECOND),
        ({FIRST: 0.0, SECOND: 0.20, THIRD: 0.10}, THIRD),  # the first cannot run
        ({FIRST: 0.0, SECOND: 0.20, THIRD: 0.0}, SECOND),
        ({FIRST: 0.1000, SECOND: 0.0999, THIRD: 0.0998}, FIRST),  # as fast as can be told apart
    ],
)
def test_the_fastest_that_runs_wins_and_the_first_of_equals(clock, seconds, chosen):
    assert policies._fastest(probes(clock, seconds)) == chosen


def test_a_run_that_was_disturbed_once_is_judged_by_its_others(clock):
    disturbed = iter([0.1, 5.0])

    def build():
        def run():
            clock.now += next(disturbed, 0.1)

        return run

    rivals = {FIRST: build, **probes(clock, {SECOND: 0.2})}
    assert policies._fastest(rivals) == FIRST


def test_where_none_runs_a_policy_must_be_pinned(clock):
    with pytest.raises(ConfigError, match="none of the policies runs"):
        policies._fastest(probes(clock, {FIRST: 0.0, SECOND: 0.0}))
