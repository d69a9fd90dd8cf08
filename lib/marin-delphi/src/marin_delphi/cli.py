"""The ``delphi`` command: plans printed as a table, or as one JSON document.

Exit codes: 0 done, 1 something failed, 2 usage or bad input. A user's mistake is one line on stderr.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from json import dumps
from typing import Any, Literal

from marin_delphi.errors import MarinDelphiError
from marin_delphi.ladder import Candidate, Recipe, isoflop_ladder, select
from marin_delphi.recipes import RECIPES

SCHEMA = 1
WIDTH = 132
"""Columns that the table needs; a narrower terminal breaks its lines rather than lose digits."""


def plan(
    *,
    budgets: tuple[float, ...],
    recipe: Literal["completed-adamh"] = "completed-adamh",
    tokens_min: float | None = None,
    batch: int | None = None,
    json: bool = False,
) -> None:
    """Print the configurations that a recipe gives at each budget.

    Example: delphi plan --budgets 3e18 9e18

    Example: delphi plan --budgets 1e21 --tokens-min 46.2e9 --batch 512

    Args:
        budgets: Training FLOPs, such as 3e18 9e18.
        recipe: The scaling recipe.
        tokens_min: Only the candidate with the fewest tokens that has at least so many, at each budget.
        batch: Sequences a step, in place of the recipe's; steps and hyperparameters follow, tokens stay.
        json: One JSON document on stdout instead of the table.
    """
    made = RECIPES[recipe]()
    candidates = isoflop_ladder(made, budgets)
    if tokens_min is not None:
        groups = ([c for c in candidates if c.budget == budget] for budget in budgets)
        candidates = tuple(select(group, tokens_min=tokens_min) for group in groups)
    if batch is not None:
        candidates = tuple(c.with_batch(batch) for c in candidates)
    if json:
        _print_json(made, candidates)
    else:
        _print_table(made, candidates)


def row(candidate: Candidate) -> dict[str, Any]:
    """A candidate as one flat row of JSON-able values: what a trainer needs, and the counts by convention."""
    return {
        "budget_flops": candidate.budget,
        **dataclasses.asdict(candidate.architecture),
        "num_params_total": candidate.num_params(convention="total"),
        "num_params_recipe": candidate.num_params(convention="recipe"),
        "num_params_non_embedding": candidate.num_params(convention="non_embedding"),
        "tokens": candidate.tokens,
        "tokens_per_param": candidate.tokens_per_param,
        "batch_size": candidate.batch_size,
        "seq_len": candidate.recipe.seq_len,
        "steps": candidate.steps,
        "flops_total": candidate.flops,
        **dataclasses.asdict(candidate.hyperparameters),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments after the program's name; the process's own by default.

    Returns:
        The exit code.
    """
    import tyro

    commands: dict[str, Callable[..., None]] = {"plan": plan}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands, prog="delphi", args=argv, description="From a compute budget to complete configurations."
        )
        sys.stdout.flush()
    except MarinDelphiError as error:
        print(f"delphi: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader, say `head`, has had enough. Point stdout away, or the interpreter's last flush complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"delphi: {error}", file=sys.stderr)
        return 1
    return 0


def _print_json(recipe: Recipe, candidates: Sequence[Candidate]) -> None:
    document = {
        "schema": SCHEMA,
        "recipe": recipe.name,
        "recipe_digest": recipe.digest(),
        "params": dataclasses.asdict(recipe),
        "candidates": [row(c) for c in candidates],
    }
    print(dumps(document, indent=2))


def _print_table(recipe: Recipe, candidates: Sequence[Candidate]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    settings = [f.name for f in dataclasses.fields(candidates[0].hyperparameters)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("budget", "hidden", "layers", "heads", "mlp", "params", "tokens", "tok/param", "batch", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in settings:
        table.add_column(name.replace("learning_rate", "lr"), justify="right", no_wrap=True)
    for c in candidates:
        shape, hyper = c.architecture, c.hyperparameters
        dims = (shape.hidden_dim, shape.num_layers, shape.num_heads, shape.mlp_dim)
        counts = (f"{c.num_params():.4g}", f"{c.tokens:.4g}", f"{c.tokens_per_param:.1f}", c.batch_size, f"{c.steps:,}")
        values = (f"{getattr(hyper, name):.4g}" for name in settings)
        table.add_row(f"{c.budget:g}", *map(str, dims + counts), *values)
    # Captured and printed, since rich answers a closed pipe by exiting with 1.
    with console.capture() as shown:
        console.print(table)
    print(shown.get(), end="")
    noun = "configuration" if len(candidates) == 1 else "configurations"
    print(f"{len(candidates)} {noun} by {recipe.name} {recipe.digest()[:12]}; params counts every leaf")
