"""A run's routing as one HTML file that needs no network: curves, and loads of layers and experts over steps.

It answers three questions, from the top: does the model learn, is it balanced, and which experts are not. The page's
own policy admits nothing from elsewhere. Long runs are thinned out to what a screen can show.
"""

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from marin_train.errors import MissingExtraError
from marin_train.routing_history import CAPACITY, RoutingHistory, overflow

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MAX_POINTS = 1500
_MAX_FRAMES = 60
_HEIGHT = 300
_LOADS = [[0, "#000000"], [1e-4, "#000000"], [1e-4, "#2166ac"], [0.5, "#f7f7f7"], [1, "#b2182b"]]
"""From no token (black) by few (blue) and the mean (white) to twice the mean and more (red)."""

_LOGARITHMIC = frozenset({"max_vio", "bias_drift"})
"""Figures that come down by factors."""

_TICKS = [float(f"{digit}e{power}") for power in range(-6, 4) for digit in (1, 2, 5)]
"""What is told beside their axes: of a logarithmic axis's own ticks, most are told by their first digit alone."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1240px; margin: 1.5rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 1.6rem 0 0; }
p { margin: .2rem 0; max-width: 80ch; } .note { color: #555; }
dl { display: flex; flex-wrap: wrap; gap: .6rem 2rem; margin: 1rem 0; } dt { color: #555; font-size: .85rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 0 1.5rem; }
.pair > section { min-width: 0; }
"""

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def render_routing(history: RoutingHistory) -> str:
    """The page.

    Args:
        history: of a run, finished or not.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    try:
        import plotly.io
    except ImportError:
        raise MissingExtraError(
            "the page of a run's routing needs a package that is not here: pip install plotly"
        ) from None
    first = (
        ("Loss", "Mean cross-entropy of each step's batch.", _loss(history)),
        (
            "MaxVio: how much the fullest expert is over the mean",
            "0 is perfect balance; 1 is twice the mean load. Thin lines are layers, the black one the worst of a step.",
            _by_layer(history, "max_vio", "max load / mean load - 1"),
        ),
    )
    others = [
        (
            "Entropy of loads",
            "1 is equal loads for all experts, 0 all tokens at one. The black line is the worst layer of a step.",
            _by_layer(history, "load_entropy", "share of that of equal loads"),
        ),
        (
            "Entropy of the router",
            "Mean over tokens; at 0 the router is sure of one expert, at the top it knows no difference.",
            _by_layer(history, "router_entropy", "nats", top=math.log(history.experts["num_experts"])),
        ),
        ("Dead experts", "Experts that no token of a step's batch was routed to, over all layers.", _dead(history)),
        (
            "Drops and padding",
            f"Dropped: routes that found no room. Would be dropped: beyond a room of {CAPACITY} times the mean load an "
            "expert, were there one. Padding: rows computed for nothing, beside those of routes.",
            _shares(history),
        ),
    ]
    if any(history.over_layers("bias_drift")):
        text = "Root-mean-square over experts of what a step moved it by."
        figure = _by_layer(history, "bias_drift", "change, in units of scores")
        others.append(("Bias of the router's scores", text, figure))
    drawn: list[str] = []
    for title, text, figure in (*first, _heat(history), *others):
        body = plotly.io.to_html(
            figure,
            full_html=False,
            include_plotlyjs=not drawn,
            auto_play=False,
            config={"displayModeBar": False, "responsive": True},
        )
        drawn.append(f'<section><h2>{title}</h2><p class="note">{text}</p>{body}</section>')
    pairs = [f'<div class="pair">{"".join(part)}</div>' for part in (drawn[: len(first)], drawn[len(first) + 1 :])]
    name = html.escape(str(history.run))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Routing of {name}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><style>{_STYLE}</style></head><body>'
        f"<h1>Routing of {name}</h1>{_summary(history)}"
        f"{pairs[0]}{drawn[len(first)]}{pairs[1]}</body></html>\n"
    )


def _summary(history: RoutingHistory) -> str:
    told = history.summary()
    experts = f"{told['num_experts']} experts, {told['top_k']} a token"
    of = f"{told['layers']} layers of {experts}; balance: {told['balance']}."
    dropped = told["dropped_by_sender"] + told["dropped_by_receiver"]
    shown = {
        "steps": f"{told['step']:,}",
        "loss": _text(told["loss"], ".4f"),
        "MaxVio, worst layer": _text(told["max_vio"], ".3f"),
        "entropy of loads, worst layer": _text(told["load_entropy"], ".4f"),
        "dead experts": _text(told["dead"], ".1f"),
        "dropped": _text(dropped, ".2%"),
        f"would be dropped at {CAPACITY}": _text(told[f"would_drop_at_{CAPACITY}"], ".2%"),
        "padding": _text(told["padding"], ".1%"),
        "bias moves by, a step": _text(told["bias_drift"], ".2g"),
    }
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown.items())
    over = f"Figures are means over the last {told['over_steps']:,} steps."
    return f'<p>{html.escape(of)} <span class="note">{over}</span></p><dl>{cells}</dl>'


def _loss(history: RoutingHistory) -> "go.Figure":
    figure = _figure("loss, nats a token")
    _add(figure, [row["step"] for row in history.rows], [row["loss"] for row in history.rows], name="loss")
    return figure.update_layout(showlegend=False)


def _by_layer(history: RoutingHistory, name: str, axis: str, *, top: float | None = None) -> "go.Figure":
    """A thin line a layer, and one over layers."""
    from plotly.colors import sample_colorscale

    figure = _figure(axis)
    colours = sample_colorscale("Viridis", len(history.layers) + 1, colortype="rgb")
    for layer, colour in zip(history.layers, colours, strict=False):
        _add(figure, *history.of_layer(layer, name), name=f"layer {layer}", color=colour, width=1)
    over, title = history.over_layers(name), "mean" if top else "worst"
    _add(figure, [row["step"] for row in history.rows], over, name=title, color="#000000")
    if top:
        figure.add_hline(y=top, line_dash="dot", annotation_text="equal", annotation_position="top left")
    if name in _LOGARITHMIC and all(value is None or value > 0 for value in over):  # there, 0 has no place
        figure.update_yaxes(type="log", tickvals=_TICKS, ticktext=[f"{tick:g}" for tick in _TICKS])
    elif name == "load_entropy":
        figure.update_yaxes(autorangeoptions_clipmax=1.002)
    else:
        figure.update_yaxes(rangemode="tozero")
    return figure.update_layout(showlegend=len(history.layers) <= 8)


def _dead(history: RoutingHistory) -> "go.Figure":
    figure = _figure("experts")
    _add(figure, [row["step"] for row in history.rows], history.over_layers("dead"), name="dead")
    if not any(history.over_layers("dead")):
        figure.update_yaxes(range=[0, 1])
    return figure.update_yaxes(rangemode="tozero").update_layout(showlegend=False)


def _shares(history: RoutingHistory) -> "go.Figure":
    figure = _figure("share of routes")
    steps = [row["step"] for row in history.rows]
    for name, title in (
        ("dropped_by_sender", "dropped by sender"),
        ("dropped_by_receiver", "dropped by receiver"),
        ("padding", "padding"),
    ):
        values = history.over_layers(name)
        if name == "padding" or any(values):
            _add(figure, steps, values, name=title)
    would = overflow(history.loads, capacity=CAPACITY).mean(axis=1).tolist()
    _add(figure, history.load_steps, would, name=f"would be dropped at {CAPACITY}")
    return figure.update_yaxes(rangemode="tozero", tickformat=".0%")


def _heat(history: RoutingHistory) -> tuple[str, str, "go.Figure"]:
    """Loads of all experts of all layers, a picture a step."""
    import plotly.graph_objects as go

    chosen = _spread(len(history.load_steps), most=_MAX_FRAMES)
    mean = np.maximum(history.loads.mean(axis=-1, keepdims=True), 1e-9)
    relative = (history.loads / mean).astype(np.float32)

    def picture(i: int) -> go.Heatmap:
        bar = {"tickvals": [0, 0.5, 1, 1.5, 2], "ticktext": ["none", "half", "mean", "1.5", "2 or more"]}
        hover = "layer %{y}, expert %{x}: %{z:.2f} times the mean<extra></extra>"
        experts = list(range(history.loads.shape[-1]))
        return go.Heatmap(
            z=relative[i], x=experts, y=list(history.layers), zmin=0, zmax=2, colorscale=_LOADS, colorbar=bar,
            hovertemplate=hover, xgap=int(len(experts) <= 64), ygap=1,
        )  # fmt: skip

    figure = _figure("layer", x="expert", height=max(260, 170 + 12 * len(history.layers)))
    figure.add_trace(picture(chosen[-1]))
    names = [str(history.load_steps[i]) for i in chosen]
    figure.frames = [go.Frame(data=[picture(i)], name=name) for i, name in zip(chosen, names, strict=True)]
    still: dict[str, Any] = {
        "mode": "immediate",
        "frame": {"duration": 0, "redraw": True},
        "transition": {"duration": 0},
    }
    moving = still | {"frame": {"duration": 150, "redraw": True}, "fromcurrent": False}
    figure.update_yaxes(autorange="reversed", dtick=max(1, len(history.layers) // 12), showgrid=False, zeroline=False)
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_layout(
        hovermode="closest",
        margin={"b": 110},
        sliders=[
            {
                "active": len(names) - 1,
                "currentvalue": {"prefix": "step "},
                "x": 0.08,
                "len": 0.92,
                "pad": {"t": 40},
                "steps": [{"label": name, "method": "animate", "args": [[name], still]} for name in names],
            }
        ],
        updatemenus=[
            {
                "type": "buttons",
                "x": 0.06,
                "y": 0,
                "xanchor": "right",
                "yanchor": "top",
                "pad": {"t": 46},
                "buttons": [{"label": "play", "method": "animate", "args": [None, moving]}],
            }
        ],
    )
    text = (
        "Each cell is an expert: white has the mean load of its layer, red more, blue less, black none at all. Move "
        "the slider, or play, to see it over the run."
    )
    return "Loads of all experts", text, figure


def _figure(y: str, *, x: str = "step", height: int = _HEIGHT) -> "go.Figure":
    import plotly.graph_objects as go

    figure = go.Figure()
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    figure.update_layout(
        template="plotly_white", height=height, margin={"l": 60, "r": 10, "t": 30, "b": 45}, hovermode="x unified",
        xaxis_title=x, yaxis_title=y, legend=legend, font_family="system-ui, sans-serif",
    )  # fmt: skip
    return figure


def _add(
    figure: "go.Figure",
    steps: Sequence[int],
    values: Sequence[float | None],
    *,
    name: str,
    color: str | None = None,
    width: float = 1.5,
) -> None:
    import plotly.graph_objects as go

    shown = _spread(len(steps), most=_MAX_POINTS)
    line = {"color": color, "width": width}
    xs, ys = [steps[i] for i in shown], [values[i] for i in shown]
    figure.add_trace(go.Scatter(x=xs, y=ys, name=name, mode="lines", line=line, hovertemplate="%{y:.4g}"))


def _spread(count: int, *, most: int) -> list[int]:
    """So many positions at most, evenly spread, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def _text(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)
