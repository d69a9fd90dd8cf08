import dataclasses

import pytest

from marin_train import policy as policies
from marin_train.configs import Component, DataConfig, ModelConfig, TrainConfig
from marin_train.policy import Policy

RUN = TrainConfig(
    model=ModelConfig(
        vocab_size=16, hidden_dim=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, mlp_dim=8, max_seq_len=8
    ),
    data=DataConfig(components=(Component(name="a", path="a"),), seq_len=8),
    steps=1,
    batch_size=2,
)


def num_products(policy):
    """Matrix products in the gradient's program of one layer."""
    program = policies._layers_probe(RUN, policy=policy)
    return program.func.lower(*program.args).as_text().count("stablehlo.dot_general")


# Forward, a layer has products by seven matrices, and two of attention. The last one's result no derivative reads.
@pytest.mark.parametrize(
    ("attention", "remat", "recomputed"),
    [
        ("reference", "full", 8),
        ("reference", "dots", 2),  # those of attention, whose results are as large as its scores
        ("blocked", "full", 8),
        ("blocked", "dots", 2),
        ("blocked", "named", 6),  # its mixed values are kept, and so none of attention's
        ("splash", "named", 6),
    ],
)
def test_the_backward_pass_recomputes_what_its_policy_says_and_no_other_product(attention, remat, recomputed):
    policy = Policy(operands="bfloat16", attention=attention)
    assert num_products(dataclasses.replace(policy, remat=remat)) - num_products(policy) == recomputed
