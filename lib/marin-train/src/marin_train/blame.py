"""What was behind a step: the documents of its batch, where they came from, and what each cost the model.

A loss that jumps has its reason in a batch, and a batch is a function of its step: it can be had back at any time, and
its documents with it. Each is scored with the parameters of the nearest checkpoint before the step; which one that was
is told, since a document that was hard for those may have been less so a thousand steps later.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marin_train.certificates import read_certificate
from marin_train.checkpoints import checkpoints, load_model
from marin_train.data.listing import RowListing, list_rows
from marin_train.data.mixture import Mixture
from marin_train.data.packing import Sequences
from marin_train.data.sources import Sources
from marin_train.data.store import TokenStore
from marin_train.errors import CheckpointError, ConfigError, DamagedError
from marin_train.scorer import make_scorer
from marin_train.tables import align

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class BlamedDocument:
    """A document's part in a batch.

    Attributes:
        loss: nats a token, over its tokens that count in the loss.
        num_tokens: how many those are.
        share: of the batch's summed loss.
        component: the mixture's component.
        source: the file that it was made of; None where the store does not say.
        store: where the component's store is.
        document: its number in that store.
        first_token: the number in the store of the first token scored.
        row: of the batch, from 0.
        text: the beginning of what was scored.
    """

    loss: float
    num_tokens: int
    share: float
    component: str
    source: str | None
    store: str
    document: int
    first_token: int
    row: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Blame:
    """The documents behind a step, those first that lift its loss most: by their losses above its mean, summed.

    Attributes:
        step: the step, counted from 1 as in ``metrics.jsonl``.
        parameters_of: steps that the parameters had gone through by which documents are scored.
        loss: of the batch by those parameters, nats a token.
        num_tokens: of the batch, that count in the loss.
        documents: see there.
    """

    step: int
    parameters_of: int
    loss: float | None
    num_tokens: int
    documents: tuple[BlamedDocument, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def blame_step(run: str | Path, step: int) -> Blame:
    """The documents behind a step of a run.

    Args:
        run: the run's directory.
        step: counted from 1, as in ``metrics.jsonl``.

    Raises:
        CheckpointError: the run has no whole checkpoint.
        ConfigError: it has no such step.
        ExhaustedError: the components' epoch limits leave no data for it.
        TokenStoreError: a token store is absent or damaged.
    """
    checkpoint = _nearest(Path(run), step)
    trained = load_model(checkpoint)
    config = trained.config
    if not 1 <= step <= config.steps:
        raise ConfigError(f"--step {step}: the run's steps are 1 to {config.steps:,}")
    score = partial(make_scorer(config.model, policy=trained.policy), trained.model)
    return blame_batch(Mixture.of_run(config), step, score, parameters_of=read_certificate(checkpoint).step)


def blame_batch(mixture: Mixture, step: int, score: Callable[[Sequences], np.ndarray], *, parameters_of: int) -> Blame:
    """The documents behind a batch.

    Args:
        mixture: of the run.
        step: counted from 1.
        score: a batch to the loss of each prediction in nats, Float[rows, seq].
        parameters_of: steps that the parameters behind ``score`` had gone through.
    """
    from tokenizers import Tokenizer

    batch = mixture.batch(step - 1)
    losses = np.where(batch.loss_mask, score(batch), 0.0)
    total, num_tokens = float(losses.sum()), int(batch.loss_mask.sum())
    stores = {name: _Open.of(store) for name, store in mixture.stores.items()}
    tokenizer = Tokenizer.from_file(str(mixture.tokenizer_file))
    documents = []
    for row in list_rows(mixture, step - 1):
        opened = stores[row.component]
        for piece in _pieces(row, opened.borders, seq_len=losses.shape[1]):
            counts = batch.loss_mask[row.row, piece.columns]
            if not counts.any():
                continue
            loss = float(losses[row.row, piece.columns].sum())
            ids = opened.store.read(piece.first_token, piece.first_token + min(len(counts), _SHOWN_CHARACTERS))
            documents.append(
                BlamedDocument(
                    loss=loss / int(counts.sum()),
                    num_tokens=int(counts.sum()),
                    share=loss / total if total else 0.0,
                    component=row.component,
                    source=opened.sources.of(piece.document),
                    store=row.store,
                    document=piece.document,
                    first_token=piece.first_token,
                    row=row.row,
                    text=tokenizer.decode(ids.tolist(), skip_special_tokens=False)[:_SHOWN_CHARACTERS],
                )
            )
    mean = total / max(num_tokens, 1)
    return Blame(
        step=step,
        parameters_of=parameters_of,
        loss=mean if num_tokens else None,
        num_tokens=num_tokens,
        documents=tuple(sorted(documents, key=lambda document: -(document.loss - mean) * document.num_tokens)),
    )


class _Open(NamedTuple):
    """A store with what tells its documents apart."""

    store: TokenStore
    borders: np.ndarray
    sources: Sources

    @classmethod
    def of(cls, store: TokenStore) -> "_Open":
        return cls(store, store.document_borders(), Sources(store))


class _Piece(NamedTuple):
    """A document's predictions in a row: which columns, and the number of the first predicted token in the store."""

    document: int
    columns: slice
    first_token: int


def _pieces(row: RowListing, borders: np.ndarray, *, seq_len: int) -> Iterator[_Piece]:
    """Column t of a row predicts the token behind its own, so the document of a prediction is its target's."""
    first, stop = row.first_token + 1, min(row.first_token + row.num_tokens, row.first_token + 1 + seq_len)
    while first < stop:
        document = int(np.searchsorted(borders, first, side="right")) - 1
        end = min(int(borders[document + 1]), stop)
        yield _Piece(document, slice(first - row.first_token - 1, end - row.first_token - 1), first)
        first = end


def _nearest(run: Path, step: int) -> Path:
    """The newest whole checkpoint before the step, or else the oldest behind it."""
    whole = []
    for path in checkpoints(run / "checkpoints"):
        try:
            whole.append((read_certificate(path).step, path))
        except DamagedError:
            continue
    if not whole:
        raise CheckpointError(f"{run} holds no whole checkpoint; give the directory of a run that has saved one")
    before = [found for found in whole if found[0] < step]
    return max(before)[1] if before else min(whole)[1]


def to_text(blame: Blame, *, width: int = 100) -> str:
    """The documents as a table, each with the beginning of its text in as many columns; and how to go on from there."""
    loss = "no token of it counts in the loss" if blame.loss is None else f"loss {blame.loss:.4f}"
    head = f"step {blame.step}: {loss}, {blame.num_tokens:,} tokens, by the parameters after step {blame.parameters_of}"
    if not blame.documents:
        return head
    titles = ("loss", "tokens", "share", "component", "document", "source")
    rows = [
        (f"{d.loss:.3f}", f"{d.num_tokens:,}", f"{d.share:.1%}", d.component, f"{d.document:,}", d.source or "?")
        for d in blame.documents
    ]
    first, *others = align([titles, *rows], left={3, 5})
    lines = [first]
    for line, document in zip(others, blame.documents, strict=True):
        lines += [line, f"    {document.text!r}"[:width]]
    worst = blame.documents[0]
    ask = f"more of the first: zephyr inspect {worst.store} --token {worst.first_token}"
    return "\n".join([head, "", *lines, "", ask])
