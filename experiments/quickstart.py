"""The main job: raw text to a trained, evaluated and recorded language model, on one command and no network.

    pip install uv && uv run experiments/quickstart.py             # about 3 minutes on 2 cores; again: nothing to do
    uv run experiments/quickstart.py --steps 20                    # a first look in under a minute
    uv run experiments/quickstart.py --learning-rate 0.002         # trains anew; the data is reused
    uv run experiments/quickstart.py --plan                        # what would run, and why

The corpus is the running Python's own standard library: real text that is always there. ``--corpus tinystories`` takes
`roneneldan/TinyStories` (Eldan and Li 2023) at a pinned revision; ``--corpus PATH_OR_GLOB`` takes your own jsonl,
parquet (a document a row, in the column ``text``) or txt files (a document a file).

Every step is lazy, content-addressed and committed atomically: kill it anywhere, run it again, and it goes on from
the last committed work to the same final model, bit for bit.
"""

import os

from bridge import (
    baselines,
    compare,
    evaluate,
    exact_dedup,
    fuzzy_dedup,
    normalize,
    sample,
    split,
    tokenize,
    train,
    train_tokenizer,
)
from corpora import raw_files
from marin_core import RunReport, Step, main
from marin_train import Component, DataConfig, OptimizerConfig, TrainConfig, presets

PROMPTS = {
    "stdlib": ("def ", "class Test", "import os\nimport ", '"""Return the ', "for i in range("),
    "tinystories": ("Once upon a time", "One day, a little ", "Lily and her mom ", "The dog was "),
}


def build(
    *,
    corpus: str = "stdlib",
    steps: int = 500,
    learning_rate: float = 3e-3,
    batch_size: int = 8,
    vocab_size: int = 8192,
    seed: int = 0,
    policy: str = "auto",
) -> list[Step]:
    """From raw text to a language model that is trained, compared with baselines, and sampled.

    Args:
        corpus: "stdlib", "tinystories", or a path or glob of jsonl, txt or parquet files.
        steps: updates of the model; more is better, at about 0.3 s each on two cores.
        learning_rate: the peak of the schedule.
        batch_size: sequences a step.
        vocab_size: tokens that the tokenizer learns.
        seed: of the model's initial values, the order of the data, and the samples.
        policy: how a step is computed; "auto" measures which is fastest here.
    """
    raw = raw_files(corpus)
    texts = normalize(raw.step, files=raw.files, documents=raw.documents)
    unique = exact_dedup(texts)
    distinct = fuzzy_dedup(unique)
    sides = split(distinct, seed=0)
    tokenizer = train_tokenizer(sides, vocab_size=vocab_size)
    train_tokens = tokenize(sides, tokenizer, part="train", name="tokenize_train")
    validation_tokens = tokenize(sides, tokenizer, part="validation", name="tokenize_validation")
    config = TrainConfig(
        model=presets.llama_nano(vocab_size),
        data=DataConfig(components=(Component(name="corpus", path=""),), seq_len=256, seed=seed),
        optimizer=OptimizerConfig(learning_rate=learning_rate),
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        policy=policy,
    )
    model = train(train_tokens, config=config)
    score = compare(evaluate(model, validation_tokens), baselines(sides, train_tokens, validation_tokens))
    samples = sample(model, prompts=PROMPTS.get(corpus, ("The ", "In ", "A ")), seed=seed)
    return [score, samples, model]


def epilogue(report: RunReport) -> str:
    """The closing lines: the machine, and how the model compares."""
    scores = report.value("compare")["bits_per_byte"]
    trained = report.value("train")
    rejected = report.value("normalize")["num_rejected"]
    rows = "\n".join(f"  {bits:6.3f}  {name}" for name, bits in sorted(scores.items(), key=lambda item: item[1]))
    checkpoint, rejects = (os.path.relpath(report.path(name)) for name in ("train", "normalize"))
    why = f"; {rejects}/rejects says why" if rejected else ""
    return (
        f"rejected documents: {rejected}{why}\n"
        f"matrix products here: {trained['matmul_flops_float32'] / 1e9:,.0f} GFLOP/s in float32, "
        f"{trained['peak_flops'] / 1e9:,.0f} as trained ({trained['policy']})\n"
        f"bits/byte of the validation text, lower is better:\n{rows}\n"
        f"try: uv run marin-train generate {checkpoint}/checkpoint 'import os'\n"
        f"bits/byte {scores['model']:.3f}"
    )


if __name__ == "__main__":
    main(build, epilogue=epilogue)
