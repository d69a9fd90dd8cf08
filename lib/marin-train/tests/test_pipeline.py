"""The pipeline's schedule by itself; that its results are those of one device is tested with the other meshes."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train.configs import ModelConfig
from marin_train.errors import ConfigError
from marin_train.pipeline import backward_at, check_stages, forward_at, num_ticks

SHAPE = ModelConfig(
    vocab_size=16, hidden_dim=8, num_layers=6, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=8, max_seq_len=8
)


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_microbatch_passes_every_stage_once_each_way_after_those_it_depends_on(num_microbatches, num_stages):
    ticks = range(num_ticks(num_microbatches, num_stages=num_stages))
    forward, backward = {}, {}
    for tick in ticks:
        for stage in range(num_stages):
            f, b = forward_at(tick, stage=stage), backward_at(tick, stage=stage, num_stages=num_stages)
            if 0 <= f < num_microbatches:
                assert (f, stage) not in forward
                forward[f, stage] = tick
            if 0 <= b < num_microbatches:
                assert (b, stage) not in backward
                backward[b, stage] = tick
    everything = {(m, stage) for m in range(num_microbatches) for stage in range(num_stages)}
    assert forward.keys() == backward.keys() == everything
    for m, stage in everything:
        if stage:
            assert forward[m, stage] == forward[m, stage - 1] + 1
            assert backward[m, stage - 1] == backward[m, stage] + 1
    assert all(forward[m, num_stages - 1] == backward[m, num_stages - 1] for m in range(num_microbatches))
    assert max(backward.values()) == ticks[-1]


@given(st.integers(1, 40), st.integers(1, 12))
def test_inputs_that_are_under_way_at_a_stage_have_places_of_their_own(num_microbatches, num_stages):
    places = 2 * num_stages - 1
    for stage in range(num_stages):
        held: dict[int, int] = {}
        for tick in range(num_ticks(num_microbatches, num_stages=num_stages)):
            f, b = forward_at(tick, stage=stage), backward_at(tick, stage=stage, num_stages=num_stages)
            if 0 <= f < num_microbatches:
                assert f % places not in held
                held[f % places] = f
            if 0 <= b < num_microbatches:
                assert held.pop(b % places) == b
        assert not held


def test_stages_that_do_not_cut_the_layers_into_equal_shares_are_refused():
    check_stages(SHAPE, 3)
    with pytest.raises(ConfigError, match=r"MeshConfig\.stage=4 must divide ModelConfig\.num_layers=6"):
        check_stages(SHAPE, 4)


def test_stages_whose_layers_would_differ_in_kind_are_refused():
    local = dataclasses.replace(SHAPE, family="gemma3", sliding_window=4, global_every=3, tie_embeddings=True)
    check_stages(local, 2)
    with pytest.raises(ConfigError, match=r"MeshConfig\.stage=3 gives each stage 2 of 6 layers"):
        check_stages(local, 3)
