"""``routing``: what a run told of itself, as a page to look at."""

from pathlib import Path
from typing import Annotated

import tyro

from marin_train.commands.console import Page, print_result


def routing(run: Annotated[Path, tyro.conf.arg(metavar="RUN")], /, *, out: Page = None, json: bool = False) -> None:
    """Show how balanced the experts of a run are: in a line, and as a page of curves and of every expert's load.

    Example: marin-train routing runs/moe --out routing.html

    Args:
        run: the run's directory; the run may still be going on.
        out: the page to write; by default routing.html in the run's directory.
        json: print the figures and the page's path as JSON.
    """
    from marin_train.durability import write_whole
    from marin_train.routing_history import CAPACITY, read_routing
    from marin_train.routing_page import render_routing

    history = read_routing(run)
    page = run / "routing.html" if out is None else out
    page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, render_routing(history))
    told = history.summary()
    if json:
        print_result({**told, "page": str(page)})
        return
    dropped = told["dropped_by_sender"] + told["dropped_by_receiver"]
    would = f"{told[f'would_drop_at_{CAPACITY}']:.2%} at a capacity of {CAPACITY}"
    print_result(
        f"step {told['step']:,}, balance {told['balance']}; means over the last {told['over_steps']:,} steps:\n"
        f"MaxVio {told['max_vio']:.3f} in the worst layer, {told['dead']:.1f} dead experts, {dropped:.2%} dropped "
        f"({would}), padding {told['padding']:.1%}\n{page}"
    )
