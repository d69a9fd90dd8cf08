"""``marin-train``: train, evaluate, sample, export and describe from the shell; a thin layer over the library.

Results go to standard output, one JSON document with ``--json``; progress and warnings go to standard error. Exit
codes: 0 done, 1 something failed or was interrupted, 2 usage or bad input, 3 refused because something drifted.
"""

import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from marin_train.errors import LostProcessError, MarinTrainError

if TYPE_CHECKING:
    from marin_train.tracking import Tracker

Overrides = Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="A.B=C"), tyro.conf.UseAppendAction]

_LESS_MEMORY = "make batches smaller, raise accumulation, or use more devices; marin-train describe says what one holds"

Services = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME"), tyro.conf.UseAppendAction]


def run(
    config: Path,
    /,
    *,
    out: Path,
    set_: Overrides = (),
    tracker: Services = (),
    profile: str | None = None,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    json: bool = False,
) -> None:
    """Train a model, or go on where a run was stopped.

    Example: marin-train run nano.toml --set optimizer.learning_rate=0.002 --out runs/nano

    Args:
        config: the run's configuration, .json or .toml, nested like TrainConfig.
        out: the run's directory.
        set_: override one field, by its dotted name; may be given again.
        tracker: tell wandb, tensorboard or trackio of every step; may be given again.
        profile: steps to trace into the run's directory, as START:STOP.
        coordinator: train together with other processes, which meet at this HOST:PORT; or auto, on a cluster that
            JAX knows.
        num_processes: how many there are.
        process_id: which one this is, from 0; the others print nothing.
        json: print the run's summary as JSON.
    """
    from marin_train.config_files import load
    from marin_train.distributed import is_first, join
    from marin_train.loop import train
    from marin_train.profiling import ProfileWindow
    from marin_train.trackers import make_tracker

    window = None if profile is None else ProfileWindow.parse(profile)
    settings, services = load(config, overrides=set_), [make_tracker(name, out) for name in tracker]
    with _chatter_on_stderr(), _progress() as trackers:
        join(coordinator, num_processes=num_processes, process_id=process_id)
        result = train(settings, out, trackers=[*trackers, *services], profile=window)
    if not is_first():
        return
    loss = "none: no token of the last steps counts" if result.loss is None else f"{result.loss:.4f}"
    _print(result.summary if json else f"loss {loss}\n{result.checkpoint}")


def evaluate(checkpoint: Path, store: str, /, *, batch_size: int = 8, json: bool = False) -> None:
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
    _print(result.to_dict() if json else text)


def held_out(checkpoint: Path, /, *, batch_size: int = 8, json: bool = False) -> None:
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
    _print([r.to_dict() for r in results] if json else "\n".join(lines))


def generate(
    checkpoint: Path,
    prompt: str,
    /,
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
    num_samples: int = 1,
    json: bool = False,
) -> None:
    """Continue a prompt.

    Example: marin-train generate runs/nano "import os" --temperature 0.5

    Args:
        checkpoint: a checkpoint, or a run's directory, whose newest one is taken.
        prompt: the beginning; "" asks for a document from its start.
        max_new_tokens: tokens at most.
        temperature: 0 takes the likeliest token; 1 draws from the model's distribution.
        top_p: draw only from the likeliest tokens whose probabilities sum to this.
        seed: of the draws.
        num_samples: continuations to draw.
        json: print prompt and continuations as JSON.
    """
    from marin_train.errors import ConfigError
    from marin_train.generation import generate

    if num_samples < 1:
        raise ConfigError(f"--num-samples {num_samples}: must be positive")
    texts = generate(
        checkpoint,
        [prompt] * num_samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
    )
    _print({"prompt": prompt, "continuations": texts} if json else "\n---\n".join(prompt + text for text in texts))


def export(
    checkpoint: Path,
    /,
    *,
    hf: Path,
    dtype: Literal["float32", "bfloat16"] = "float32",
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Write a checkpoint as a Hugging Face directory: config.json, safetensors and tokenizer.

    Example: marin-train export runs/nano --hf exported/nano

    Args:
        checkpoint: a checkpoint, or a run's directory, whose newest one is taken.
        hf: the directory to write.
        dtype: of the tensors; float32 loses nothing.
        overwrite: replace the directory where it is there already, if it holds an exported model and nothing else.
        json: print the directory as JSON.
    """
    from marin_train.hf import export_hf

    path = export_hf(checkpoint, hf, dtype=dtype, overwrite=overwrite)
    _print({"path": str(path)} if json else str(path))


def blame(run: Path, /, *, step: int, json: bool = False) -> None:
    """Show the documents behind a step's batch, their files, and what each costs the model.

    Example: marin-train blame runs/nano --step 321

    Args:
        run: the run's directory; its token stores are where they were.
        step: counted from 1, as in metrics.jsonl.
        json: print the documents as JSON.
    """
    from marin_train.blame import blame_step, to_text

    result = blame_step(run, step)
    _print(result.to_dict() if json else to_text(result, width=shutil.get_terminal_size((100, 24)).columns))


def describe(config: Path, /, *, devices: int | None = None, set_: Overrides = (), json: bool = False) -> None:
    """Show a run's parameters, counts, mesh, memory and cost; nothing is allocated and no data are read.

    Example: marin-train describe nano.toml

    Args:
        config: the run's configuration, .json or .toml, nested like TrainConfig.
        devices: how many there will be, for a mesh axis that takes those that are left.
        set_: override one field, by its dotted name; may be given again.
        json: print the description as JSON.
    """
    from marin_train.config_files import load
    from marin_train.description import describe, to_text

    description = describe(load(config, overrides=set_), num_devices=devices)
    _print(description if json else to_text(description))


def data(
    config: Path,
    /,
    *,
    steps: int | None = None,
    diff: Path | None = None,
    step: int | None = None,
    set_: Overrides = (),
    json: bool = False,
) -> None:
    """Show what a run takes from each component of its mixture, which of its steps another mixture changes, or what one
    step is trained on.

    Example: marin-train data nano.toml --diff nano-more-code.toml

    Args:
        config: the run's configuration, .json or .toml; its token stores are opened, no token is read.
        steps: steps to look at, instead of the run's.
        diff: another run's configuration, to compare the two mixtures step by step.
        step: list this step's rows, counted from 0: component, sequence, and its tokens in the store.
        set_: override one field, by its dotted name; may be given again.
        json: print the result as JSON.
    """
    from marin_train.config_files import load
    from marin_train.data import description, differences, listing
    from marin_train.data.mixture import Mixture
    from marin_train.errors import ConfigError

    runs = [load(config, overrides=set_), *([load(diff)] if diff else [])]
    num_steps = runs[0].steps if steps is None else steps
    if num_steps < 1:
        raise ConfigError(f"--steps {num_steps}: must be positive")
    if step is not None and (step < 0 or diff):
        raise ConfigError(f"--step {step}: must be 0 or more, and not beside --diff")
    mixtures = [
        Mixture.open(
            run.data, batch_size=run.batch_size, batch_stages=run.batch_stages, vocab_size=run.model.vocab_size
        )
        for run in runs
    ]
    if step is not None:
        rows = listing.list_rows(mixtures[0], step)
        _print([row.to_dict() for row in rows] if json else listing.to_text(rows, step=step))
    elif diff:
        difference = differences.diff(*mixtures, steps=num_steps)
        _print(difference.to_dict() if json else differences.to_text(difference))
    else:
        described = description.describe(mixtures[0], num_steps)
        _print(described.to_dict() if json else description.to_text(described))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command's entry point; exits with the codes of the module's docstring."""
    from marin_train.progress import StderrHandler

    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[StderrHandler()])
    # Progress is ours to tell; what the libraries below have to say is not, unless it warns.
    logging.getLogger("marin_train").setLevel(logging.INFO)
    commands = {
        "run": run,
        "eval": evaluate,
        "generate": generate,
        "export": export,
        "blame": blame,
        "describe": describe,
        "data": data,
        "held-out": held_out,
    }
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # no text is lost for what a terminal cannot show of it
    description = "Train, evaluate and sample language models. Exit codes: 0 done, 1 failed, 2 bad input, 3 refused."
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands,
            args=arguments,
            prog="marin-train",
            description=description,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except LostProcessError as error:
        print(f"marin-train: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)  # an orderly end would wait for the process that is gone
    except MarinTrainError as error:
        print(f"marin-train: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader has seen enough; Python's last flush must not find the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a disk that is full, a file that may not be read
        print(f"marin-train: {error}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "out of memory" not in str(error).lower():  # as XLA says it
            raise
        reason = str(error).partition("\n")[0]
        print(f"marin-train: out of memory ({reason}); {_LESS_MEMORY}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(1)


@contextmanager
def _progress() -> Generator[list["Tracker"]]:
    """A line that is drawn anew on a terminal; elsewhere none, and the loop logs plain ones."""
    if not sys.stderr.isatty():
        yield []
        return
    from marin_train.progress import ProgressLine

    plain = logging.getLogger("marin_train.reporting")
    level, line = plain.level, ProgressLine()
    plain.setLevel(logging.WARNING)
    try:
        yield [line]
    finally:
        line.close()
        plain.setLevel(level)


@contextmanager
def _chatter_on_stderr() -> Generator[None]:
    """Standard output is for results: what libraries below Python write there goes to standard error."""
    if sys.stdout is None:  # closed by whoever started this
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _print(result: Any) -> None:
    print(result if isinstance(result, str) else json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
