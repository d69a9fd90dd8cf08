import dataclasses
import json
from collections.abc import Callable

import numpy as np

from marin_train.configs import PackingConfig, SimulatedEpoching, Stage
from marin_train.data.description import describe, to_text
from marin_train.data.mixture import Mixture

Open = Callable[..., Mixture]
STAGES = (Stage(start=4, weights={"a": 1.0, "b": 1.0}), Stage(start=90, weights={"c": 1.0}))


def test_what_is_described_is_what_the_batches_hold(mixture: Open) -> None:
    opened = mixture(of={"a": {"validation": 4}, "b": {"max_epochs": 2.0}}, stages=STAGES, c=0.25)
    described = describe(opened, 12)
    rows = [opened.rows(step) for step in range(12)]
    component, number = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    for index, c in enumerate(described.components):
        drawn = number[component == index]
        assert c.drawn == len(drawn)
        assert c.tokens == 4 * len(drawn)
        assert c.tokens_unique == 4 * len(np.unique(drawn))
        assert c.epochs == len(drawn) / c.available
        assert c.share == len(drawn) / 60
    assert [c.available for c in described.components] == [16, 7, 13]
    assert [c.held_out for c in described.components] == [4, 0, 0]
    assert described.tokens == 12 * 5 * 4
    assert described.tokens_unique == sum(c.tokens_unique for c in described.components)


def test_a_component_that_is_used_up_is_named_with_its_step(mixture: Open) -> None:
    opened = mixture(of={"b": {"max_epochs": 1.0}})
    drawn = [int(np.count_nonzero(opened.rows(step).component == 1)) for step in range(20)]
    last = max(step for step in range(20) if drawn[step])
    described = describe(opened, 20)
    assert described.components[1].exhausted_at == last
    assert [s.shares["b"] > 0 for s in described.shares] == [True, False]
    assert describe(opened, last).components[1].exhausted_at is None


def test_shares_are_those_of_the_stages(mixture: Open) -> None:
    described = describe(mixture(stages=STAGES, a=2.0), 50)
    assert [s.step for s in described.shares] == [0, 4]
    assert described.shares[0].shares == {"a": 0.5, "b": 0.25, "c": 0.25}
    assert described.shares[1].shares == {"a": 0.5, "b": 0.5, "c": 0.0}


def test_one_is_warned_of_what_one_would_rather_know(mixture: Open) -> None:
    warnings = describe(mixture(stages=STAGES, c=0.0), 50).warnings
    for expected in (
        "the stages from step 90 on never begin",
        "components never drawn: 'c'",
        "component 'b' is gone through 17.9 times; beyond 4",
    ):
        assert any(expected in warning for warning in warnings), expected
    assert describe(mixture("a"), 10).warnings == ()


def test_a_run_that_is_too_long_is_described_as_far_as_it_goes(mixture: Open) -> None:
    described = describe(mixture("a", of={"a": {"max_epochs": 1.0}}), 10)
    assert described.steps == 4
    assert described.tokens == described.tokens_unique == 80
    assert any("ends after 4 of 10 steps" in warning for warning in described.warnings)


def test_simulated_epoching_shows_as_epochs(mixture: Open) -> None:
    cut = SimulatedEpoching(experiment_tokens=1, target_tokens=4)
    whole, part = describe(mixture("a"), 8), describe(mixture("a", simulated_epoching=cut), 8)
    assert (whole.components[0].epochs, part.components[0].epochs) == (2.0, 8.0)
    assert part.components[0].num_sequences == 20


def test_text_names_every_component_and_json_holds_everything(mixture: Open) -> None:
    described = describe(mixture(stages=STAGES, of={"b": {"max_epochs": 1.0}}), 20)
    lines = to_text(described).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["a", "b", "c"]
    assert "step 3" in lines[2]
    assert json.loads(json.dumps(described.to_dict()))["components"][1]["exhausted_at"] == 3


def test_one_is_warned_when_another_component_is_the_same_store(mixture: Open) -> None:
    plain = mixture("ab", of={"a": {"validation": 2}}).config
    twin = dataclasses.replace(plain.components[0], name="twin", validation=0)
    config = dataclasses.replace(plain, components=(*plain.components, twin))
    warnings = describe(Mixture.open(config, batch_size=5), 3).warnings
    assert any("held out of 'a' is trained on as 'twin'" in warning for warning in warnings)
    many = tuple(dataclasses.replace(twin, name=f"twin{i}") for i in range(5))
    idle = dataclasses.replace(twin, name="idle", weight=0.0)
    config = dataclasses.replace(plain, components=(*plain.components, *many, idle))
    warnings = describe(Mixture.open(config, batch_size=5), 9).warnings
    assert [w for w in warnings if "same store" in w] == [
        "what is held out of 'a' is trained on as 'twin0', 'twin1', 'twin2' and 2 more, which is the same store"
    ]
    assert not any(
        "held out" in warning for warning in describe(mixture("ab", of={"a": {"validation": 2}}), 3).warnings
    )


def test_padding_and_what_is_dropped_are_told(mixture: Open) -> None:
    # Of documents of 30 and 51 tokens one fits, with ten inputs to spare.
    packed = mixture("a", packing=PackingConfig(kind="documents", overlong="drop"), seq_len=40)
    described = describe(packed, 1)
    component = described.components[0]
    assert (component.num_sequences, component.dropped) == (1, 51)
    assert component.padding == 10 / 40
    assert any("25% of the sequences of component 'a' is padding" in warning for warning in described.warnings)
    assert describe(mixture("a"), 1).components[0].padding == 0
