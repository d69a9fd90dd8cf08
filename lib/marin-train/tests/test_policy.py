import dataclasses
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train import models
from marin_train import policy as policies
from marin_train.checkpoints import named_leaves
from marin_train.configs import Component, DataConfig, ModelConfig, TrainConfig
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
    attention=st.sampled_from(["reference", "blocked"]),
    remat=st.sampled_from(["keep", "full", "dots", "named"]),
    scan=st.booleans(),
)


@given(every_policy)
def test_a_policy_survives_its_name_and_its_record(policy):
    assert by_name(policy.name) == policy
    assert Policy.from_dict(policy.to_dict()) == policy


def test_an_unknown_policy_is_refused_with_an_example():
    with pytest.raises(ConfigError, match=r"TrainConfig\.policy='fast'.*float32-reference-keep-unroll"):
        choose(dataclasses.replace(RUN, policy="fast"))


def test_a_pinned_policy_is_taken_unmeasured(monkeypatch):
    monkeypatch.setattr(policies, "_fastest", lambda *_, **__: pytest.fail("it measured"))
    pinned = "bfloat16-blocked-full-scan"
    assert choose(dataclasses.replace(RUN, policy=pinned)).name == pinned


def test_however_little_time_there_is_both_operands_are_measured(monkeypatch, caplog):
    monkeypatch.setattr(policies, "SECONDS", 0.0)
    with caplog.at_level(logging.INFO, logger="marin_train"):
        chosen = choose(RUN)
    measured = [line.split()[1].rstrip(":") for line in caplog.messages if " ms for " in line]
    assert measured == ["float32-reference-keep-unroll", "bfloat16-reference-keep-unroll"]
    assert by_name(chosen.name) == chosen
    assert caplog.messages[-1] == f"policy {chosen.name}: taken unmeasured, for lack of time"


def test_the_layers_that_are_measured_are_the_runs_own():
    gradient = policies._layers_probe(RUN, policy=Policy(scan=True))()
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


def test_no_candidate_is_begun_that_would_not_be_done_in_time(monkeypatch):
    clock, tried = Clock(), []
    monkeypatch.setattr(policies, "time", clock)

    def probe(policy):
        def build():
            tried.append(policy)
            clock.now += 3.0  # of compiling
            return run

        return build

    def run():
        clock.now += 0.25

    candidates = [Policy(), Policy(scan=True), Policy(remat="full"), Policy(remat=True, scan=True)]
    policies._fastest({policy: probe(policy) for policy in candidates}, what="a test", deadline=8.0)
    assert tried == candidates[:2]
    assert clock.now == 8.0  # two compiled and run, and three more runs of each


def test_the_fastest_wins_and_one_that_cannot_run_is_no_candidate():
    import jax

    slow, fast, broken = Policy(), Policy(scan=True), Policy(remat="full")
    calls = {slow: 3_000_000, fast: 1}

    def probe(policy):
        def build():
            if policy == broken:
                raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no such product")
            return lambda: sum(range(calls[policy]))

        return build

    probes = {policy: probe(policy) for policy in (broken, slow, fast)}
    assert policies._fastest(probes, what="a test", deadline=float("inf")) == fast
    assert policies._fastest(probes, what="a test", deadline=0.0) == slow  # out of time after the first that runs
    with pytest.raises(ConfigError, match="none of the policies runs"):
        policies._fastest({broken: probe(broken)}, what="a test", deadline=float("inf"))
