import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from marin_train.blame import blame_batch, blame_step, to_text
from marin_train.checkpoints import load_model
from marin_train.configs import Component, DataConfig, OptimizerConfig, PackingConfig, TrainConfig
from marin_train.data.mixture import Mixture
from marin_train.errors import CheckpointError, ConfigError
from marin_train.loop import train
from marin_train.losses import Batch, token_losses

GARBAGE = 369
"""The number of a document that is like no other."""


def documents() -> list[list[int]]:
    """Each counts up by one from where it begins, then ends; but one, which is drawn."""
    rng = np.random.default_rng(0)
    found = [[int(t) for t in 1 + (start + np.arange(11)) % 63] + [0] for start in rng.integers(0, 63, 600)]
    found[GARBAGE] = [*map(int, rng.integers(1, 64, 11)), 0]
    return found


@pytest.fixture(scope="module")
def run(
    tiny_config: Callable[..., TrainConfig], write_store: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run over two parts of 400 and 200 documents, each seen too seldom to be learned by heart."""
    where, texts = tmp_path_factory.mktemp("blame"), documents()
    sources = [[("a.jsonl", 300), ("b.jsonl", 100)], [("c.jsonl", 200)]]
    store = write_store(where / "store", [texts[:400], texts[400:]], sources=sources)
    data = DataConfig(components=(Component(name="all", path=str(store)),), seq_len=24, seed=1)
    config = tiny_config(
        data=data, steps=315, batch_size=2, checkpoint_steps=300, optimizer=OptimizerConfig(learning_rate=0.02)
    )
    return train(config, where / "run").out_dir


def step_of(run: Path, document: int, *, after: int = 300) -> int:
    """A step, counted from 1, whose batch holds the whole of that document."""
    trained = load_model(run)
    mixture = Mixture.open(trained.config.data, batch_size=2)
    wanted = documents()[document][:-1]
    for step in range(after, trained.config.steps):
        for row in mixture.batch(step).tokens.tolist():
            if any(row[at : at + 11] == wanted for at in range(len(row))):
                return step + 1
    raise AssertionError("no such step")


def test_the_document_that_is_unlike_the_others_is_named_first_with_its_file(run: Path) -> None:
    step = step_of(run, GARBAGE)
    blame = blame_step(run, step)
    worst, *others = blame.documents
    assert (worst.document, worst.source, worst.component) == (GARBAGE, "b.jsonl", "all")
    assert blame.parameters_of == 300
    assert worst.loss > 3 * max(other.loss for other in others if other.num_tokens > 3)
    text = to_text(blame).splitlines()
    assert text[3].split()[-2:] == [str(GARBAGE), "b.jsonl"]
    assert f"--token {worst.first_token}" in text[-1]


@pytest.mark.parametrize("kind", ["contiguous", "documents"])
def test_documents_share_out_every_prediction_of_the_batch_and_its_loss(run: Path, kind: str) -> None:
    trained = load_model(run / "checkpoints" / "step-00000300")
    data = dataclasses.replace(trained.config.data, packing=PackingConfig(kind=kind))
    mixture = Mixture.open(data, batch_size=2)
    config = dataclasses.replace(trained.config, data=data)
    score = jax.jit(lambda batch: token_losses(trained.model, batch, config=config.model, policy=trained.policy))
    blame = blame_batch(
        mixture, 31, lambda batch: np.asarray(score(Batch(**batch._asdict())), np.float64), parameters_of=300
    )
    batch = mixture.batch(30)
    losses = np.asarray(score(Batch(**batch._asdict())), np.float64)
    total = float(losses[batch.loss_mask].sum())
    assert sum(d.num_tokens for d in blame.documents) == blame.num_tokens == int(batch.loss_mask.sum())
    np.testing.assert_allclose(sum(d.loss * d.num_tokens for d in blame.documents), total)
    np.testing.assert_allclose(sum(d.share for d in blame.documents), 1.0)
    texts = documents()
    stream = [token for text in texts for token in text]
    begins = np.cumsum([0, *map(len, texts)])
    for d in blame.documents:
        # What is scored lies in the document that is named, and each of its tokens is in the row that is.
        assert begins[d.document] <= d.first_token < d.first_token + d.num_tokens <= begins[d.document + 1]
        scored = stream[d.first_token : d.first_token + d.num_tokens]
        row = batch.tokens[d.row].tolist()
        assert any(row[at : at + len(scored)] == scored for at in range(1, len(row)))


def test_the_first_steps_are_scored_by_the_first_checkpoint(run: Path) -> None:
    assert blame_step(run, 1).parameters_of == 300


def test_a_step_that_the_run_has_not_is_refused(run: Path) -> None:
    for step in (0, 316):
        with pytest.raises(ConfigError, match=rf"--step {step}: the run's steps are 1 to 315"):
            blame_step(run, step)


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no whole checkpoint"):
        blame_step(tmp_path, 1)
