import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_train.configs import BatchStage, Component, DataConfig, Stage
from marin_train.data import description, differences
from marin_train.data.batch_sizes import BatchSizes
from marin_train.data.mixture import Mixture
from marin_train.errors import ExhaustedError

sizes = st.builds(
    lambda first, starts, later: BatchSizes(
        first,
        tuple(BatchStage(start=start, batch_size=size) for start, size in zip(sorted(starts), later, strict=False)),
    ),
    st.integers(1, 9),
    st.sets(st.integers(1, 30), max_size=4),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
)


def plain(of: BatchSizes, steps: int) -> list[int]:
    """The size of every step, one after the other."""
    size, listed = of.first, []
    later = {stage.start: stage.batch_size for stage in of.stages}
    for step in range(steps):
        size = later.get(step, size)
        listed.append(size)
    return listed


@given(sizes)
def test_offsets_are_the_sums_of_the_sizes_before(of: BatchSizes) -> None:
    listed = plain(of, 40)
    assert [of.at(step) for step in range(40)] == listed
    assert [of.offset(step) for step in range(41)] == list(itertools.accumulate(listed, initial=0))


@given(sizes)
def test_every_draw_is_of_the_step_that_takes_it(of: BatchSizes) -> None:
    owners = [step for step, size in enumerate(plain(of, 40)) for _ in range(size)]
    assert [of.step_of(draw) for draw in range(len(owners))] == owners


@pytest.fixture
def config(write_store, tmp_path) -> DataConfig:
    """Two components of 100 sequences of 8 tokens, of which "b" comes in at step 6."""
    paths = {
        name: write_store(tmp_path / name, [[np.random.default_rng(seed).integers(1, 64, 803).tolist()]])
        for seed, name in enumerate("ab")
    }
    components = tuple(Component(name=name, path=str(path), weight=float(name == "a")) for name, path in paths.items())
    return DataConfig(
        components=components, seq_len=8, seed=3, stages=(Stage(start=6, weights={"a": 0.25, "b": 0.75}),)
    )


STAGES = (BatchStage(start=4, batch_size=6), BatchStage(start=9, batch_size=2))


def staged(config: DataConfig, stages: tuple[BatchStage, ...] = STAGES, *, steps: int = 0) -> Mixture:
    return Mixture.open(config, batch_size=3, batch_stages=stages, steps=steps)


def test_batches_cut_the_one_stream_of_draws_without_gap_or_repeat(config: DataConfig) -> None:
    opened = staged(config)
    batches = [opened.batch(step) for step in range(12)]
    assert [len(batch.tokens) for batch in batches] == [3] * 4 + [6] * 5 + [2] * 3
    # The stream, a sequence at a time; there too "b" comes in with the seventh batch, whose first draw is 12 + 2 * 6.
    alone = dataclasses.replace(config, stages=(dataclasses.replace(config.stages[0], start=24),))
    single = Mixture.open(alone, batch_size=1)
    stream = np.concatenate([single.batch(draw).tokens for draw in range(3 * 4 + 6 * 5 + 2 * 3)])
    np.testing.assert_array_equal(np.concatenate([batch.tokens for batch in batches]), stream)


def test_weights_change_at_their_step_whatever_the_sizes(config: DataConfig) -> None:
    opened = staged(config)
    named = [set(opened.rows(step).component.tolist()) for step in range(9)]
    assert named[:6] == [{0}] * 6
    assert all(1 in components for components in named[6:])


def test_any_step_may_be_asked_for_in_any_order(config: DataConfig) -> None:
    opened = staged(config)
    asked = {step: opened.batch(step).tokens for step in (11, 3, 4, 5, 8, 9, 0, 4)}
    fresh = staged(config)
    for step in range(12):
        tokens = fresh.batch(step).tokens
        if step in asked:
            np.testing.assert_array_equal(asked[step], tokens)
    whole = fresh.rows_between(2, 11)
    np.testing.assert_array_equal(np.concatenate([fresh.rows(step).number for step in range(2, 11)]), whole.number)


def test_stages_are_part_of_the_mixtures_identity_and_none_is_not(config: DataConfig) -> None:
    later = (STAGES[0], dataclasses.replace(STAGES[1], start=10))
    digests = {staged(config, stages).digest for stages in ((), STAGES, later)}
    assert len(digests) == 3
    assert "batch_stages" not in staged(config, ()).identity()


def test_limits_are_checked_against_the_sequences_that_the_steps_take(config: DataConfig) -> None:
    limited = tuple(dataclasses.replace(c, max_epochs=0.2) for c in config.components)
    few = dataclasses.replace(config, components=limited, stages=())
    # 20 sequences: four steps of 3, one of 6, and two left over.
    assert staged(few).num_steps == 5
    staged(few, steps=5)
    with pytest.raises(ExhaustedError, match="6 steps ask for 192 tokens, the mixture ends after 5 steps"):
        staged(few, steps=6)
    assert staged(few).num_unique_tokens(5) == 18 * 8


def test_a_description_counts_the_sequences_of_all_stages(config: DataConfig) -> None:
    described = description.describe(staged(config), 12)
    assert described.tokens == sum(component.tokens for component in described.components) == 48 * 8
    assert described.batch_sizes == ((0, 3), (4, 6), (9, 2))
    assert [shares.step for shares in described.shares] == [0, 6]
    assert "12 of 3 x 8 tokens, from step 4 on of 6, from step 9 on of 2" in description.to_text(described)


def test_mixtures_differ_from_the_first_step_of_another_size_on(config: DataConfig) -> None:
    later = (STAGES[0], dataclasses.replace(STAGES[1], start=10))
    difference = differences.diff(staged(config), staged(config, later), steps=12)
    assert difference.ranges == ((9, 12),)
    assert any("batch_stages" in reason for reason in difference.reasons)
    weights = dataclasses.replace(config, stages=(Stage(start=6, weights={"b": 1.0}),))
    assert differences.diff(staged(config), staged(weights, later), steps=12).ranges[-1][1] == 12
    assert differences.diff(staged(config), staged(weights), steps=12).first == 6
