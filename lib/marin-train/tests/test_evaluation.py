import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from marin_train import evaluation, models
from marin_train.checkpoints import load_model
from marin_train.configs import PackingConfig
from marin_train.data.store import TokenStore
from marin_train.errors import CheckpointError, ConfigError, TokenStoreError
from marin_train.evaluation import evaluate
from marin_train.models import decoder

SEQ_LEN = 16


def _naive_nats(run: Path, store: Path) -> list[float]:
    """One token at a time, in the order of the stream: the loss of each given what precedes it in its window."""
    trained, data = load_model(run), TokenStore.open(store)
    family, config = models.family(trained.config.model), trained.config.model
    forward = jax.jit(lambda m, t: decoder.forward(m, t, config=config, policy=trained.policy) @ family.head(m))
    stream = [0, *data.read(0, data.num_tokens).tolist()]
    nats = []
    for target in range(1, len(stream)):
        start = (target - 1) // SEQ_LEN * SEQ_LEN
        context = np.zeros((1, SEQ_LEN), np.int32)
        context[0, : target - start] = stream[start:target]
        logits = np.asarray(forward(trained.model, context))[0, target - start - 1].astype(np.float64)
        nats.append(float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[stream[target]]))
    return nats


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory, write_store: Callable[..., Path]) -> Path:
    """75 tokens in two parts: four windows of 16 and a part of a fifth."""
    rng = np.random.default_rng(5)
    documents = [[*rng.integers(1, 64, size=n).tolist(), 0] for n in (0, 30, 2, 39)]
    return write_store(tmp_path_factory.mktemp("stores") / "small", [documents[:2], documents[2:]])


def test_it_equals_a_token_by_token_computation(finished_run: Path, small_store: Path) -> None:
    nats = _naive_nats(finished_run, small_store)
    result = evaluate(finished_run, small_store, batch_size=2)
    assert (result.num_tokens, result.num_bytes, result.num_documents) == (75, 71, 4)
    assert len(nats) == 75
    assert result.loss == pytest.approx(sum(nats) / 75, rel=1e-5)
    assert result.bits_per_byte == pytest.approx(sum(nats) / math.log(2) / 71, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_batch_size_changes_the_speed_alone(finished_run: Path, small_store: Path, batch_size: int) -> None:
    result = evaluate(finished_run, small_store, batch_size=batch_size)
    assert result.loss == pytest.approx(evaluate(finished_run, small_store, batch_size=2).loss, rel=1e-6)


def test_a_long_evaluation_tells_how_far_it_is(
    finished_run: Path, small_store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluation, "_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, logger="marin_train.evaluation"):
        evaluate(finished_run, small_store, batch_size=2)
    assert caplog.messages == [f"{n} of 75 tokens scored" for n in (32, 64, 75)]


def test_a_batch_of_nothing_is_refused(finished_run: Path, small_store: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size=0"):
        evaluate(finished_run, small_store, batch_size=0)


def test_masks_of_supervised_data_leave_no_token_unscored(
    finished_run: Path, tmp_path: Path, write_store: Callable[..., Path]
) -> None:
    documents = [[[1, 2, 3, 4, 0]]]
    plain = write_store(tmp_path / "plain", documents)
    masked = write_store(tmp_path / "masked", documents, masks=[[False, False, False, True, True]])
    result = evaluate(finished_run, masked)
    assert result.loss == evaluate(finished_run, plain).loss
    nats = _naive_nats(finished_run, plain)
    assert result.num_supervised_tokens == 2
    assert result.supervised_loss == pytest.approx(sum(nats[3:]) / 2, rel=1e-5)
    assert evaluate(finished_run, plain).supervised_loss is None


@pytest.mark.parametrize("reset", [False, True])
def test_a_run_on_packed_documents_is_scored_on_documents_apart(
    finished_run: Path, small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    trained = load_model(finished_run)
    packing = PackingConfig(kind="documents", reset_positions=reset)
    config = replace(trained.config, data=replace(trained.config.data, packing=packing))
    monkeypatch.setattr("marin_train.evaluation.load_model", lambda path: replace(trained, config=config))
    data, family = TokenStore.open(small_store), models.family(config.model)
    stream, borders = [0, *data.read(0, data.num_tokens).tolist()], data.document_borders()
    forward = jax.jit(lambda m, t, p: decoder.forward(m, t, config=config.model, policy=trained.policy, positions=p))
    total = 0.0
    for target in range(1, len(stream)):
        window = (target - 1) // SEQ_LEN * SEQ_LEN
        document = int(np.searchsorted(borders, target - 1, side="right")) - 1
        start = max(window, int(borders[document]))
        context, places = np.zeros((1, SEQ_LEN), np.int32), np.arange(SEQ_LEN)[None] + (0 if reset else start - window)
        context[0, : target - start] = stream[start:target]
        hidden = forward(trained.model, context, places) @ family.head(trained.model)
        logits = np.asarray(hidden)[0, target - start - 1].astype(np.float64)
        total += float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[stream[target]])
    assert evaluate(finished_run, small_store, batch_size=2).loss == pytest.approx(total / 75, rel=1e-5)


def test_a_store_of_another_tokenizer_is_refused(
    finished_run: Path, tmp_path: Path, write_store: Callable[..., Path]
) -> None:
    other = write_store(tmp_path / "other", [[[1, 0]]], tokenizer="{}")
    with pytest.raises(TokenStoreError, match="was tokenized with"):
        evaluate(finished_run, other)


def test_a_store_without_text_is_refused(finished_run: Path, tmp_path: Path, write_store: Callable[..., Path]) -> None:
    with pytest.raises(TokenStoreError, match="holds no text"):
        evaluate(finished_run, write_store(tmp_path / "empty", []))


def test_a_run_without_checkpoints_is_refused(tmp_path: Path, small_store: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        evaluate(tmp_path, small_store)


def test_a_flipped_byte_is_refused_by_its_file_and_never_scored(
    finished_run: Path, small_store: Path, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(small_store, tmp_path / "store"))
    damaged = next(store.glob("*.bin"))
    data = bytearray(damaged.read_bytes())
    data[2] ^= 0x10
    damaged.write_bytes(data)
    with pytest.raises(TokenStoreError, match=damaged.name):
        evaluate(finished_run, store)
