import dataclasses

import pytest

from marin_train import models
from marin_train.configs import ModelConfig
from marin_train.flops import flops_per_token, num_params

SHAPE = ModelConfig(
    vocab_size=100, hidden_dim=16, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=10, mlp_dim=24, max_seq_len=32
)


def test_parameters_are_counted_by_hand():
    layer = 16 * 40 + 2 * 16 * 20 + 40 * 16 + 3 * 16 * 24 + 2 * 16
    assert num_params(SHAPE) == 100 * 16 + 3 * layer + 16 + 16 * 100


def test_a_forward_token_costs_two_a_weight_it_meets_and_the_attention_it_sees():
    matrices = 3 * (16 * 40 + 2 * 16 * 20 + 40 * 16 + 3 * 16 * 24) + 16 * 100
    scores_and_values = 3 * 2 * 2 * 40  # layers; scores and values; a multiply-add; heads times their width
    full = flops_per_token(SHAPE, seq_len=32, causal=False, training=False)
    assert full == 2 * matrices + scores_and_values * 32
    causal = flops_per_token(SHAPE, seq_len=32, causal=True, training=False)
    assert causal == 2 * matrices + scores_and_values * 33 / 2
    assert flops_per_token(SHAPE, seq_len=32, causal=True) == 3 * causal


@pytest.mark.parametrize("causal", [False, True])
def test_tying_the_head_removes_parameters_and_no_work(causal):
    tied = dataclasses.replace(SHAPE, tie_embeddings=True)
    assert num_params(tied) == num_params(SHAPE) - 1600
    assert flops_per_token(tied, seq_len=8, causal=causal) == flops_per_token(SHAPE, seq_len=8, causal=causal)


def test_gains_and_lookups_cost_no_products():
    wider_vocabulary = dataclasses.replace(SHAPE, vocab_size=101)
    difference = flops_per_token(wider_vocabulary, seq_len=8, causal=True, training=False) - flops_per_token(
        SHAPE, seq_len=8, causal=True, training=False
    )
    assert difference == 2 * 16  # the head's new column, not the embedding's new row


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_len", [1, 4, 5, 17])
@pytest.mark.parametrize("fields", [{}, {"sliding_window": 5}, {"sliding_window": 5, "global_every": 2}])
def test_each_layers_scores_are_counted_pair_by_pair(fields, seq_len, causal):
    config = dataclasses.replace(SHAPE, **fields)
    pairs = 0
    for number in range(1, config.num_layers + 1):
        sees_all = config.sliding_window is None or (config.global_every and number % config.global_every == 0)
        window = seq_len if sees_all else min(seq_len, config.sliding_window)
        for query in range(seq_len):
            pairs += sum(query - window < key <= query for key in range(seq_len)) if causal else window
    cost = flops_per_token(config, seq_len=seq_len, causal=causal, training=False)
    products = 3 * (16 * 40 + 2 * 16 * 20 + 40 * 16 + 3 * 16 * 24) + 16 * 100
    assert cost == pytest.approx(2 * products + 2 * 2 * 40 * pairs / seq_len, rel=1e-12)


def test_padding_of_the_vocabulary_costs_no_parameters_and_no_products():
    padded = dataclasses.replace(SHAPE, vocab_multiple=64)
    assert padded.padded_vocab_size == 128
    assert num_params(padded) == num_params(SHAPE)
    assert models.family(padded).parameter_table(padded).stored_size == num_params(SHAPE) + 2 * 28 * 16
    assert flops_per_token(padded, seq_len=8, causal=True) == flops_per_token(SHAPE, seq_len=8, causal=True)
