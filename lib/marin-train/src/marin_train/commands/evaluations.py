"""``eval``, ``held-out`` and ``blame``: what a trained model loses, and on what."""

import shutil
from pathlib import Path
from typing import Annotated

import tyro

from marin_train.commands.console import Checkpoint, print_result


def evaluate(
    checkpoint: Checkpoint,
    store: Annotated[str, tyro.conf.arg(metavar="STORE")],
    /,
    *,
    batch_size: int = 8,
    json: bool = False,
) -> None:
    """Score every token of a token store: loss and bits/byte.

    Example: marin-train eval runs/nano stores/validation

    Args:
        checkpoint: a checkpoint, or a run's directory, whose newest one is taken.
        store: a token store: a directory, or any URL that fsspec knows.
        batch_size: sequences at a time.
        json: print the evaluation as JSON.
    """
    from marin_train.evaluation import evaluate

    result = evaluate(checkpoint, store, batch_size=batch_size)
    text = (
        f"loss {result.loss:.4f} nats/token, {result.bits_per_byte:.4f} bits/byte "
        f"({result.num_tokens:,} tokens, {result.num_bytes:,} bytes, {result.num_documents:,} documents)"
    )
    if result.supervised_loss is not None:
        text += f"\n{result.supervised_loss:.4f} nats/token over the {result.num_supervised_tokens:,} that masks count"
    print_result(result.to_dict() if json else text)


def held_out(checkpoint: Checkpoint, /, *, batch_size: int = 8, json: bool = False) -> None:
    """Score what a run's own mixture holds out, component by component.

    Example: marin-train held-out runs/nano

    Args:
        checkpoint: a checkpoint, or a run's directory, whose newest one is taken.
        batch_size: sequences at a time.
        json: print the losses as JSON.
    """
    from marin_train.held_out import evaluate_held_out
    from marin_train.periodic_evaluation import averages

    results = evaluate_held_out(checkpoint, batch_size=batch_size)
    lines = [
        f"{r.component}: loss {r.loss:.4f} nats/token, {r.bits_per_byte:.4f} bits/byte ({r.num_tokens:,} tokens)"
        for r in results
    ]
    if len(results) > 1:
        over = averages(results)
        lines += [
            f"{name}: loss {over[f'{kind}_loss']:.4f} nats/token, {over[f'{kind}_bits_per_byte']:.4f} bits/byte"
            for name, kind in (("over tokens", "micro"), ("over components", "macro"))
        ]
    print_result([r.to_dict() for r in results] if json else "\n".join(lines))


def blame(run: Annotated[Path, tyro.conf.arg(metavar="RUN")], /, *, step: int, json: bool = False) -> None:
    """Show the documents behind a step's batch, their files, and what each costs the model.

    Example: marin-train blame runs/nano --step 321

    Args:
        run: the run's directory; its token stores are where they were.
        step: counted from 1, as in metrics.jsonl.
        json: print the documents as JSON.
    """
    from marin_train.blame import blame_step, to_text

    result = blame_step(run, step)
    print_result(result.to_dict() if json else to_text(result, width=shutil.get_terminal_size((100, 24)).columns))
