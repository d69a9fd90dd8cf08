import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_train.configs import Component, DataConfig, PackingConfig, ShuffleConfig, SimulatedEpoching, Stage
from marin_train.data.mixture import Mixture, digest_batch
from marin_train.data.packing import ContiguousPacking, Sequences
from marin_train.errors import ConfigError, ExhaustedError, TokenStoreError

Open = Callable[..., Mixture]


def _sequences(mixture: Mixture, name: str, num_steps: int) -> list[int]:
    """The sequence numbers of one component, in the order in which they are trained on."""
    first = 1000 * "abc".index(name)
    starts = [row[0] for step in range(num_steps) for row in mixture.batch(step).tokens.tolist()]
    return [(start - first) // 4 for start in starts if first <= start < first + 1000]


def test_each_epoch_is_a_whole_permutation_and_no_two_are_equal(mixture: Open) -> None:
    drawn = _sequences(mixture("b"), "b", 7)
    epochs = [drawn[i : i + 7] for i in range(0, 35, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5


def test_removing_a_component_keeps_the_order_within_the_others(mixture: Open) -> None:
    full, without = mixture("abc"), mixture("ac")
    for name in "ac":
        a, b = _sequences(full, name, 20), _sequences(without, name, 20)
        shorter = min(len(a), len(b))
        assert shorter > 30
        assert a[:shorter] == b[:shorter]


def test_a_weight_moves_draws_in_time_and_never_reorders_them(mixture: Open) -> None:
    even, heavy = mixture(), mixture(a=5.0)
    a, b = _sequences(even, "b", 20), _sequences(heavy, "b", 20)
    assert 0 < len(b) < len(a)
    assert a[: len(b)] == b


def test_batches_in_any_order_are_the_batches_in_order(mixture: Open) -> None:
    forward = [mixture().batch(step) for step in range(12)]
    restarted = mixture()
    for step in (11, 3, 3, 0, 7):
        assert digest_batch(restarted.batch(step)) == digest_batch(forward[step])


def test_batch_size_cuts_one_and_the_same_stream(mixture: Open) -> None:
    small, large = mixture(batch_size=2), mixture(batch_size=6)
    rows = np.concatenate([small.batch(step).tokens for step in range(9)])
    assert np.array_equal(rows, np.concatenate([large.batch(step).tokens for step in range(3)]))


def test_the_order_in_which_components_are_listed_decides_nothing(mixture: Open) -> None:
    a, b = mixture("abc", b=2.0), mixture("cab", b=2.0)
    assert a.digest == b.digest
    assert all(digest_batch(a.batch(s)) == digest_batch(b.batch(s)) for s in range(5))


def test_the_seed_changes_the_order_and_the_digest(mixture: Open) -> None:
    a, b = mixture(seed=0), mixture(seed=1)
    assert a.digest != b.digest
    assert _sequences(a, "a", 10) != _sequences(b, "a", 10)


def test_the_draws_of_a_step_are_its_rows(mixture: Open) -> None:
    opened = mixture()
    rows = opened.rows(3)
    firsts = opened.batch(3).tokens[:, 0]
    assert firsts.tolist() == [1000 * c + 4 * n for c, n in zip(*rows, strict=True)]


@given(cuts=st.lists(st.integers(0, 8), max_size=7), step=st.integers(0, 10**6))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hosts_that_read_their_rows_have_the_batch_together(mixture: Open, cuts: list[int], step: int) -> None:
    opened = mixture(batch_size=8)
    whole = opened.batch(step)
    bounds = [0, *sorted(cuts), 8]
    hosts = [mixture(batch_size=8).batch(step, rows=slice(a, b)) for a, b in itertools.pairwise(bounds)]
    assert np.array_equal(np.concatenate([h.tokens for h in hosts]), whole.tokens)
    assert np.array_equal(np.concatenate([h.loss_mask for h in hosts]), whole.loss_mask)


def test_a_host_reads_no_rows_but_its_own(mixture: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, asked = mixture(batch_size=8), []
    fill = ContiguousPacking.fill

    def watched(self: ContiguousPacking, out: Sequences, rows: np.ndarray, numbers: np.ndarray) -> None:
        asked.extend(numbers.tolist())
        fill(self, out, rows, numbers)

    monkeypatch.setattr(ContiguousPacking, "fill", watched)
    opened.batch(5, rows=slice(2, 4))
    assert sorted(asked) == sorted(opened.rows(5).number[2:4].tolist())


def test_a_step_before_the_first_is_refused(mixture: Open) -> None:
    with pytest.raises(IndexError, match="step -1 is negative"):
        mixture().batch(-1)


STAGES = (Stage(start=3, weights={"a": 1.0, "c": 2.0}), Stage(start=7, weights={"b": 1.0}))


def test_weights_change_at_the_very_step_that_a_stage_names(mixture: Open) -> None:
    staged = mixture(stages=STAGES)
    seen = [set(staged.rows(step).component.tolist()) for step in range(9)]
    assert seen[2] == {0, 1, 2}
    assert all(s == {0, 2} for s in seen[3:7])
    assert all(s == {1} for s in seen[7:])


def test_a_stage_moves_draws_in_time_and_never_reorders_them(mixture: Open) -> None:
    plain, staged = mixture(), mixture(stages=STAGES)
    for name in "abc":
        a, b = _sequences(plain, name, 30), _sequences(staged, name, 30)
        shorter = min(len(a), len(b))
        assert shorter > 8
        assert a[:shorter] == b[:shorter]


def test_staged_batches_in_any_order_are_the_batches_in_order(mixture: Open) -> None:
    options: dict[str, Any] = {"stages": STAGES, "of": {"b": {"max_epochs": 5.0}}, "a": 0.1}
    steps = (mixture(**options).interleave.end or 0) // 5
    forward = mixture(**options)
    digests = [digest_batch(forward.batch(step)) for step in range(steps)]
    assert 9 < steps < 20
    backward = mixture(**options)
    assert [digest_batch(backward.batch(step)) for step in reversed(range(steps))] == digests[::-1]


def test_a_component_is_drawn_no_oftener_than_its_epoch_limit(mixture: Open) -> None:
    drawn = _sequences(mixture(of={"b": {"max_epochs": 1.5}}), "b", 40)
    # One and a half times seven, rounded down.
    assert len(drawn) == 10
    assert sorted(drawn[:7]) == list(range(7))
    assert drawn == _sequences(mixture(), "b", 40)[:10]


def test_a_run_that_needs_more_than_there_is_is_refused_before_it_begins(mixture: Open) -> None:
    limits = {"a": {"max_epochs": 1.0}, "b": {"max_epochs": 2.0}}
    assert mixture("ab", of=limits, steps=6).interleave.end == 34
    message = r"7 steps ask for 140 tokens, .* 6 steps and 136 tokens: 'a' has 80 tokens, max_epochs=1, 'b' has 28 .*=2"
    with pytest.raises(ExhaustedError, match=message):
        mixture("ab", of=limits, steps=7)
    with pytest.raises(ConfigError):
        mixture("ab", of=limits).batch(6)


def test_an_epoch_limit_below_one_sequence_is_refused(mixture: Open) -> None:
    with pytest.raises(ConfigError, match=r"max_epochs=0.1 of 'b' is less than one of its 7 sequences"):
        mixture(of={"b": {"max_epochs": 0.1}})


def test_simulated_epoching_repeats_a_part_as_often_as_the_target_would(mixture: Open) -> None:
    cut = SimulatedEpoching(experiment_tokens=3, target_tokens=10)
    small = mixture(simulated_epoching=cut)
    assert [pool.size for pool in small.pools] == [6, 2, 3]
    drawn = _sequences(small, "a", 20)
    assert len(set(drawn)) == 6
    assert all(sorted(drawn[i : i + 6]) == sorted(set(drawn)) for i in range(0, 18, 6))
    assert small.num_unique_tokens(1000) == (6 + 2 + 3) * 4


def test_simulated_epoching_that_leaves_nothing_is_refused(mixture: Open) -> None:
    with pytest.raises(ConfigError, match=r"nothing of component 'b': 7 sequences x experiment_tokens=1 / target"):
        mixture(simulated_epoching=SimulatedEpoching(experiment_tokens=1, target_tokens=10))


def test_what_is_held_out_is_never_trained_on(mixture: Open) -> None:
    opened = mixture(of={"a": {"validation": 6}})
    held_out = opened.validation("a")
    numbers = [row[0] // 4 for i in range(3) for row in held_out.batch(i, 2).tokens.tolist()]
    assert held_out.num_sequences == len(set(numbers)) == 6
    assert set(_sequences(opened, "a", 30)) == set(range(20)) - set(numbers)


def test_what_is_held_out_depends_on_the_name_alone(mixture: Open) -> None:
    some = {"a": {"validation": 6}}
    cut = SimulatedEpoching(experiment_tokens=1, target_tokens=2)
    others = (mixture("ab", of=some, seed=5, a=9.0), mixture("a", of=some, simulated_epoching=cut, batch_size=2))
    first = digest_batch(mixture(of=some).validation("a").batch(0, 6))
    assert all(digest_batch(other.validation("a").batch(0, 6)) == first for other in others)


def test_the_last_batch_held_out_is_short_and_none_follows(mixture: Open) -> None:
    held_out = mixture(of={"a": {"validation": 5}}).validation("a")
    assert [len(held_out.batch(i, 2).tokens) for i in range(3)] == [2, 2, 1]
    with pytest.raises(IndexError, match="batch 3 of 5 sequences"):
        held_out.batch(3, 2)
    with pytest.raises(ConfigError, match="no component 'z'; it has a, b, c"):
        mixture().validation("z")


def test_holding_out_everything_is_refused(mixture: Open) -> None:
    with pytest.raises(ConfigError, match=r"validation=7 of 'b' leaves nothing .* holds 7 sequences"):
        mixture(of={"b": {"validation": 7}})


def test_a_block_shuffle_has_the_same_sequences_in_another_order(mixture: Open) -> None:
    plain, blocks = mixture("a"), mixture("a", shuffle=ShuffleConfig(block=3, window=2))
    a, b = _sequences(plain, "a", 8), _sequences(blocks, "a", 8)
    assert a != b
    for epoch in (slice(0, 20), slice(20, 40)):
        assert sorted(a[epoch]) == sorted(b[epoch]) == list(range(20))


def test_how_a_number_was_written_decides_nothing(mixture: Open) -> None:
    whole = mixture(b=2, of={"a": {"max_epochs": 3}}, stages=(Stage(start=2, weights={"a": 1, "b": 0}),))
    point = mixture(b=2.0, of={"a": {"max_epochs": 3.0}}, stages=(Stage(start=2, weights={"a": 1.0}),))
    assert whole.digest == point.digest
    assert np.array_equal(whole.rows(3).number, point.rows(3).number)


CHANGES: dict[str, dict[str, Any]] = {
    "weight": {"a": 2.0},
    "seed": {"seed": 1},
    "stages": {"stages": STAGES},
    "shuffle": {"shuffle": ShuffleConfig(block=2)},
    "simulated": {"simulated_epoching": SimulatedEpoching(experiment_tokens=1, target_tokens=2)},
    "held out": {"of": {"a": {"validation": 1}}},
    "limit": {"of": {"a": {"max_epochs": 3.0}}},
    "batch": {"batch_size": 4},
    "components": {"names": "ab"},
}


def test_the_digest_names_all_that_decides_the_order(mixture: Open) -> None:
    digests = [mixture(**change).digest for change in ({}, *CHANGES.values())]
    assert len(set(digests)) == len(digests)
    assert mixture().digest == digests[0]


@pytest.mark.parametrize(
    "packing", [PackingConfig(), PackingConfig(reset_positions=True), PackingConfig(kind="documents")]
)
def test_each_row_of_a_batch_is_what_its_component_alone_reads(mixture: Open, packing: PackingConfig) -> None:
    opened = mixture(packing=packing)
    component, number = opened.rows(3)
    batch = opened.batch(3)
    assert len(set(component.tolist())) == 3
    for row, (c, n) in enumerate(zip(component.tolist(), number.tolist(), strict=True)):
        alone = opened.packings[c].read(np.array([n]))
        for joined, single in zip(batch, alone, strict=True):
            assert (joined is None) == (single is None)
            assert joined is None or (joined.dtype, joined[row].tolist()) == (single.dtype, single[0].tolist())


def test_unique_tokens_count_repeats_once(mixture: Open) -> None:
    assert mixture("b").num_unique_tokens(1) == 5 * 4
    assert mixture("b").num_unique_tokens(100) == 7 * 4


def test_a_store_with_more_ids_than_the_model_is_refused(mixture: Open, tmp_path: Path) -> None:
    config = mixture().config
    with pytest.raises(TokenStoreError, match=r"component 'a'.*vocab_size=5000.*64"):
        Mixture.open(config, batch_size=2, vocab_size=64)


def test_stores_of_different_tokenizers_are_refused_by_name(
    mixture: Open, tmp_path: Path, write_store: Callable[..., Path]
) -> None:
    write_store(tmp_path / "other", [[[1] * 20]], tokenizer='{"another": 1}', vocab_size=5000)
    components = (*mixture("a").config.components, Component(name="other", path=str(tmp_path / "other")))
    with pytest.raises(TokenStoreError, match="'a' and 'other'"):
        Mixture.open(dataclasses.replace(mixture("a").config, components=components), batch_size=2, vocab_size=5000)


def test_a_store_too_small_for_one_sequence_is_refused_by_name(mixture: Open, tmp_path: Path) -> None:
    config = dataclasses.replace(mixture("b").config, seq_len=100)
    with pytest.raises(TokenStoreError, match=r"component 'b'.*holds 29 tokens"):
        Mixture.open(config, batch_size=2, vocab_size=5000)


def test_a_bos_that_some_stores_have_counts_wherever_they_are_listed(write_store: Callable[..., Path], tmp_path: Path):
    paths = {name: write_store(tmp_path / name, [[[3] * 20]]) for name in "abc"}

    def begin_with(bos: int, path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["special_ids"]["bos"] = bos
        (path / "manifest.json").write_text(json.dumps(manifest))

    def opened(names: str) -> Mixture:
        components = tuple(Component(name=name, path=str(paths[name])) for name in names)
        return Mixture.open(DataConfig(components=components, seq_len=4), batch_size=1)

    begin_with(5, paths["b"])
    assert {opened(names).special_ids["bos"] for names in ("ab", "ba", "abc", "b")} == {5}
    assert opened("ac").special_ids["bos"] is None
    begin_with(6, paths["c"])
    with pytest.raises(TokenStoreError, match=r"tokenized differently.*bos"):
        opened("abc")
