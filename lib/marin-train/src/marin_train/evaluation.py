"""Evaluation: the loss of a model over a token store, every token scored exactly once, every byte counted exactly once.

The store's documents are one stream. An end-of-sequence id is put before it, so that the first document has the same
beginning as all others, and the stream is cut into windows of the training length: each token is predicted once, from
what precedes it in its window, the ids that end documents included. The last window is filled up and masked.

A run that was trained on documents packed whole is scored on documents apart: each token is predicted from its own.
Supervised data are scored whole too; beside it stands the loss over what their masks let count.

Losses of different tokenizers cannot be compared by token, but by byte: bits/byte is the total loss, in bits, over the
UTF-8 bytes of the text, which the store counts and does not estimate.
"""

import hashlib
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marin_train.checkpoints import TrainedModel, load_model
from marin_train.configs import DataConfig
from marin_train.data.packing import Sequences
from marin_train.data.store import TokenStore
from marin_train.errors import ConfigError, DivergedError, TokenStoreError
from marin_train.scorer import make_scorer

logger = logging.getLogger(__name__)

_SECONDS = 10.0
"""How far an evaluation has come is told so often."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A model's loss over a token store.

    Attributes:
        loss: nats a token.
        bits_per_byte: total loss in bits over the text's UTF-8 bytes.
        num_tokens: tokens scored: all of the store's.
        num_bytes: bytes of the text.
        num_documents: documents of the store.
        store_digest: sha256 of its manifest.
        supervised_loss: nats a token over those that the store's masks let count; None without masks.
        num_supervised_tokens: how many those are; None without masks.
    """

    loss: float
    bits_per_byte: float
    num_tokens: int
    num_bytes: int
    num_documents: int
    store_digest: str
    supervised_loss: float | None = None
    num_supervised_tokens: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The evaluation as JSON-able values."""
        return asdict(self)


def evaluate(checkpoint: str | Path, store: str | Path, *, batch_size: int = 8) -> Evaluation:
    """Scores a whole token store.

    Args:
        checkpoint: a checkpoint's directory, or a run's, whose newest checkpoint is taken.
        store: a token store's directory or URL, written with the checkpoint's tokenizer.
        batch_size: windows at a time; it changes the speed alone.

    Raises:
        CheckpointError: there is no whole checkpoint.
        ConfigError: ``batch_size`` is not positive.
        DivergedError: the loss is not finite.
        TokenStoreError: the store is damaged or empty, has another tokenizer, or no id to begin documents with.
    """
    if batch_size < 1:
        raise ConfigError(f"evaluate(batch_size={batch_size}): must be positive")
    data = TokenStore.open(store)
    trained = load_model(checkpoint)
    _check_fits(data, trained)
    data.verify()
    score = make_scorer(trained.config.model, policy=trained.policy)
    batch_size = min(batch_size, -(-data.num_tokens // trained.config.data.seq_len))
    total, supervised, num_supervised, start = 0.0, 0.0, 0, 0
    told = time.perf_counter()
    for windows in _windows(data, trained.config.data, batch_size=batch_size):
        losses = score(trained.model, windows)[windows.loss_mask]
        total += float(losses.sum())
        if data.has_mask:
            counts = data.read_mask(start, start + len(losses))
            supervised, num_supervised = supervised + float(losses[counts].sum()), num_supervised + int(counts.sum())
        start += len(losses)
        if time.perf_counter() - told >= _SECONDS:
            logger.info("%s of %s tokens scored", f"{start:,}", f"{data.num_tokens:,}")
            told = time.perf_counter()
    if not math.isfinite(total):
        raise DivergedError(f"{trained.path} gives a loss of {total} on {data.path}; use an earlier checkpoint")
    return Evaluation(
        loss=total / data.num_tokens,
        bits_per_byte=total / math.log(2) / data.num_bytes,
        num_tokens=data.num_tokens,
        num_bytes=data.num_bytes,
        num_documents=data.num_documents,
        store_digest=data.digest,
        supervised_loss=supervised / num_supervised if num_supervised else None,
        num_supervised_tokens=num_supervised if data.has_mask else None,
    )


def _windows(store: TokenStore, data: DataConfig, *, batch_size: int) -> Iterator[Sequences]:
    """The stream behind one end-of-sequence id, as batches of equal shape; the mask marks the store's own tokens."""
    seq_len, per_batch = data.seq_len, data.seq_len * batch_size
    borders = store.document_borders() if data.packing.kind == "documents" else None
    for start in range(0, store.num_tokens, per_batch):
        stop = min(start + per_batch, store.num_tokens)
        before = store.read(start - 1, start) if start else np.array([store.eos_id], np.int32)
        targets = np.zeros(per_batch, np.int32)
        targets[: stop - start] = store.read(start, stop)
        mask = np.arange(per_batch) < stop - start
        first = np.concatenate([before, targets[seq_len - 1 : -1 : seq_len]])
        rows = targets.reshape(batch_size, seq_len)
        tokens, mask = np.concatenate([first[:, None], rows], axis=1), mask.reshape(batch_size, seq_len)
        if borders is None:
            yield Sequences(tokens, mask)
        else:
            # What a document's first token is predicted from, the end of the one before it, belongs to the document.
            numbers = np.arange(start, start + per_batch).reshape(batch_size, seq_len)
            documents = np.searchsorted(borders, numbers, side="right").astype(np.int32)
            begins = np.maximum(borders[np.minimum(documents, len(borders) - 1) - 1], numbers[:, :1])
            places = (numbers - begins).astype(np.int32)
            yield Sequences(tokens, mask, documents, places if data.packing.reset_positions else None)


def _check_fits(store: TokenStore, trained: TrainedModel) -> None:
    if store.num_tokens == 0 or store.num_bytes == 0:
        raise TokenStoreError(f"{store.path} holds no text; an evaluation needs at least one document")
    if store.eos_id is None:
        raise TokenStoreError(f"{store.path}: special_ids.eos is null; the first document has nothing to begin with")
    digest = hashlib.sha256(trained.tokenizer_file.read_bytes()).hexdigest()
    if digest != store.tokenizer_digest:
        raise TokenStoreError(
            f"{store.path} was tokenized with {store.tokenizer_digest[:12]}, {trained.path} was trained with "
            f"{digest[:12]}; tokenize it with {trained.tokenizer_file}"
        )
