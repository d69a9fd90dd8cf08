from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from marin_train import models
from marin_train.checkpoints import load_model
from marin_train.errors import ConfigError
from marin_train.generation import draw_token, generate
from marin_train.models import decoder

PROMPTS = ["ABC", "", "#%'+"]
WINDOW = 16
LENGTH = 11
"""New tokens that fill the window behind the longest prompt, so that tests share one program."""


def _greedy(run: Path, *, max_new_tokens: int) -> list[str]:
    """The likeliest token after each prefix, one prompt and one prefix at a time."""
    trained = load_model(run)
    config, tokenizer = trained.config.model, Tokenizer.from_file(str(trained.tokenizer_file))
    family = models.family(config)
    forward = jax.jit(lambda m, t: decoder.forward(m, t, config=config, policy=trained.policy) @ family.head(m))
    texts = []
    for prompt in PROMPTS:
        ids = [0, *tokenizer.encode(prompt).ids]
        start = len(ids)
        while len(ids) < start + max_new_tokens:
            window = np.array([ids + [0] * (WINDOW - len(ids))], np.int32)
            token = int(np.argmax(forward(trained.model, window)[0, len(ids) - 1]))
            if token == 0:
                break
            ids.append(token)
        texts.append(tokenizer.decode(ids[start:], skip_special_tokens=False))
    return texts


def test_greedy_takes_the_likeliest_token_at_every_step(finished_run: Path) -> None:
    texts = generate(finished_run, PROMPTS, max_new_tokens=8, temperature=0.0)
    assert texts == _greedy(finished_run, max_new_tokens=8)
    assert texts == generate(finished_run, PROMPTS, max_new_tokens=8, temperature=1e-9)
    assert all(texts)


def test_equal_seeds_give_equal_texts_and_others_do_not(finished_run: Path) -> None:
    # The window ends a text at the latest, so the second call wants no other text than the first.
    first, again, other = (
        generate(finished_run, PROMPTS, max_new_tokens=length, temperature=1.0, seed=seed)
        for length, seed in ((WINDOW, 1), (10**12, 1), (WINDOW, 2))
    )
    assert first == again != other


def test_a_text_does_not_depend_on_the_prompts_after_it(finished_run: Path) -> None:
    texts, others = (
        generate(finished_run, prompts, max_new_tokens=LENGTH, temperature=1.0)
        for prompts in (PROMPTS, [PROMPTS[0], "ZZ", "YYYY"])
    )
    assert texts[0] == others[0]
    assert texts[1:] != others[1:]


def test_a_text_ends_with_the_window_or_the_wanted_length(finished_run: Path) -> None:
    prompts = ["ABC", "ABCDEFGHIJ", ""]
    texts = [generate(finished_run, prompts, max_new_tokens=9, temperature=1.0, seed=seed) for seed in range(4)]
    # The window of 16 holds the id that begins a document, the prompt and the continuation: one byte a token here.
    # A text may end earlier, by itself; of four drawn from this model some do not.
    assert max(len(text) for text, _, _ in texts) == 9
    assert max(len(text) for _, text, _ in texts) == 5


def test_no_prompts_give_no_texts(finished_run: Path) -> None:
    assert generate(finished_run, []) == []


@pytest.mark.parametrize(
    "settings", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"seed": -1}]
)
def test_a_setting_out_of_its_range_is_refused(finished_run: Path, settings: dict[str, float]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        generate(finished_run, ["a"], **settings)


def test_a_prompt_that_fills_the_window_is_refused(finished_run: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompt 1 has 16 tokens.*window is 16"):
        generate(finished_run, ["A", "A" * 15])


def test_a_prompt_that_is_not_unicode_is_refused(finished_run: Path) -> None:
    with pytest.raises(ConfigError, match="prompt 1 is not Unicode text"):
        generate(finished_run, ["A", "\udcff"])


def _frequencies(logits: list[float], *, temperature: float, top_p: float) -> np.ndarray:
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = jax.vmap(lambda key: draw_token(key, jnp.array(logits), temperature=temperature, top_p=top_p))
    return np.bincount(np.asarray(draw(keys)), minlength=len(logits)) / 4000


def test_draws_follow_the_distribution() -> None:
    frequencies = _frequencies(np.log([0.5, 0.3, 0.2]).tolist(), temperature=1.0, top_p=1.0)
    assert frequencies == pytest.approx([0.5, 0.3, 0.2], abs=0.04)


def test_temperature_sharpens_and_top_p_cuts() -> None:
    logits = np.log([0.2, 0.5, 0.3]).tolist()
    assert _frequencies(logits, temperature=0.5, top_p=1.0) == pytest.approx(np.array([4, 25, 9]) / 38, abs=0.04)
    assert _frequencies(logits, temperature=1.0, top_p=0.6) == pytest.approx([0, 0.625, 0.375], abs=0.04)
    assert _frequencies(logits, temperature=1.0, top_p=0.01).tolist() == [0, 1, 0]


def test_settings_that_float32_does_not_hold_take_the_likeliest() -> None:
    logits = np.log([0.2, 0.5, 0.3]).tolist()
    for temperature, top_p in ((1.0, 1e-50), (1e-50, 1.0), (5e-324, 5e-324)):
        assert _frequencies(logits, temperature=temperature, top_p=top_p).tolist() == [0, 1, 0]
