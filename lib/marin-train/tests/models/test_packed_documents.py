"""Documents packed into one sequence against the same documents, each a sequence of its own."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_train import models
from marin_train.blocks import blocked_attention
from marin_train.configs import Component, DataConfig, ModelConfig, PackingConfig
from marin_train.data.packing import pack
from marin_train.data.store import TokenStore
from marin_train.losses import Batch, summed_loss
from marin_train.models import decoder
from marin_train.policy import Policy

SEQ_LEN = 24
SHAPE = ModelConfig(
    vocab_size=64, hidden_dim=12, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=20, max_seq_len=SEQ_LEN
)
POLICIES = (Policy(), Policy(attention="blocked", remat="full", scan=True))
LENGTHS = (5, 9, 3, 25, 1, 2, 20, 12, 11)


@pytest.fixture(scope="module")
def documents():
    rng = np.random.default_rng(0)
    return [rng.integers(1, 64, size=length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def alone(documents):
    """Each document at the beginning of a sequence; what fills that up comes after it, and is not seen."""
    tokens, mask = np.zeros((len(documents), SEQ_LEN + 1), np.int32), np.zeros((len(documents), SEQ_LEN), bool)
    for row, document in enumerate(documents):
        tokens[row, : len(document)], mask[row, : len(document) - 1] = document, True
    return Batch(tokens, mask)


@pytest.fixture(scope="module", params=[True, False], ids=["reset", "running on"])
def packed(request, documents, write_store, tmp_path_factory):
    path = write_store(tmp_path_factory.mktemp("packed") / "store", [documents[:4], documents[4:]])
    config = DataConfig(
        components=(Component(name="all", path=str(path)),),
        seq_len=SEQ_LEN,
        packing=PackingConfig(kind="documents", reset_positions=request.param),
    )
    packing = pack(TokenStore.open(path), config)
    return Batch(*packing.read(np.arange(packing.num_sequences)))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of queries a sequence, and borders of documents within them."""
    monkeypatch.setattr(blocked_attention, "BLOCK", 8)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_logits_of_a_packed_document_are_those_of_the_document_alone(policy, packed, alone, draw_model):
    model, family = draw_model(SHAPE), models.family(SHAPE)

    @jax.jit
    def logits(batch):
        hidden = decoder.forward(
            model,
            batch.tokens[:, :-1],
            config=SHAPE,
            policy=policy,
            positions=batch.positions,
            segment_ids=batch.segment_ids,
        )
        return hidden @ family.head(model)

    assert len(packed.tokens) < len(alone.tokens)
    together, apart = (np.asarray(logits(batch))[batch.loss_mask] for batch in (packed, alone))
    np.testing.assert_allclose(together, apart, atol=2e-5)


@cache
def loss_and_gradient(policy):
    def loss(model, batch):
        loss = summed_loss(model, batch, config=SHAPE, policy=policy, z_loss=0.1)
        return loss.objective / jnp.maximum(loss.num_tokens, 1), loss.num_tokens

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def in_full(batch):
    """With every field, and as many rows as there are documents: one program for all batches."""
    positions = np.broadcast_to(np.arange(SEQ_LEN, dtype=np.int32), batch.loss_mask.shape)
    fields = (
        batch.tokens,
        batch.loss_mask,
        np.zeros_like(positions) if batch.segment_ids is None else batch.segment_ids,
        positions if batch.positions is None else batch.positions,
    )
    return Batch(*(np.pad(field, ((0, len(LENGTHS) - len(field)), (0, 0))) for field in fields))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_loss_and_gradient_of_packed_documents_are_the_sums_over_documents(policy, packed, alone, draw_model):
    step, model = loss_and_gradient(policy), draw_model(SHAPE)
    (together, num_together), gradients = step(model, in_full(packed))
    (apart, num_apart), gradients_apart = step(model, in_full(alone))
    assert num_together == num_apart == sum(LENGTHS) - len(LENGTHS)
    np.testing.assert_allclose(together, apart, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(gradients_apart), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
