"""A mixture described before it is trained on: what each component gives, how often it is gone through, what is left.

The numbers are those of the run itself, counted by the closed forms that make its batches, and not expectations; no
token is read for them.
"""

from dataclasses import asdict, dataclass
from typing import Any

from marin_train.data.interleaving import WHOLE
from marin_train.data.mixture import Mixture
from marin_train.tables import align

MANY_EPOCHS = 4
"""Up to so many passes repeated text is worth nearly what new text is (Muennighoff et al. 2023)."""

MUCH_PADDING = 0.1

_MAX_COLUMNS = 6


@dataclass(frozen=True, kw_only=True)
class ComponentDescription:
    """What a run takes from one component.

    Attributes:
        name: the component's.
        path: its store.
        num_sequences: sequences in the store.
        held_out: of these, for validation.
        available: of the rest, those that are trained on (under simulated epoching a part).
        tokens_available: their predicted tokens, padding included.
        padding: the part of the store's sequences that holds no token.
        dropped: tokens of the store that are in no sequence.
        max_epochs: its limit.
        drawn: sequences the run takes, repeats included.
        tokens: their predicted tokens.
        tokens_unique: the same, each counted once.
        epochs: how often ``available`` is gone through.
        share: its part of the run.
        exhausted_at: the step in which its limit is reached; None if the run never does.
    """

    name: str
    path: str
    num_sequences: int
    held_out: int
    available: int
    tokens_available: int
    padding: float
    dropped: int
    max_epochs: float | None
    drawn: int
    tokens: int
    tokens_unique: int
    epochs: float
    share: float
    exhausted_at: int | None


@dataclass(frozen=True, kw_only=True)
class SharesDescription:
    """The shares from ``step`` on: those of a stage, or what is left of them once a component is exhausted."""

    step: int
    shares: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class MixtureDescription:
    """What a run takes from a mixture.

    Attributes:
        steps: steps described: those asked for, or as many as epoch limits leave.
        batch_size: sequences a step, at first.
        batch_sizes: first step and sequences a step of every stage that the run reaches.
        seq_len: predicted tokens a sequence.
        tokens: predicted tokens of the run.
        tokens_unique: the same, each counted once.
        components: in the mixture's order.
        shares: in the order of steps.
        warnings: what one would rather know before.
        digest: the mixture's.
    """

    steps: int
    batch_size: int
    batch_sizes: tuple[tuple[int, int], ...]
    seq_len: int
    tokens: int
    tokens_unique: int
    components: tuple[ComponentDescription, ...]
    shares: tuple[SharesDescription, ...]
    warnings: tuple[str, ...]
    digest: str

    def to_dict(self) -> dict[str, Any]:
        """The description as JSON-able values."""
        return asdict(self)


def describe(mixture: Mixture, steps: int) -> MixtureDescription:
    """Counts what the first ``steps`` steps take from each component.

    Args:
        mixture: the mixture.
        steps: of the run.

    Returns:
        The description; where the epoch limits leave data for fewer steps, of those, with a warning.
    """
    there = steps if mixture.num_steps is None else min(steps, mixture.num_steps)
    sizes, seq_len = mixture.sizes, mixture.config.seq_len
    sequences = sizes.offset(there)
    counts = mixture.interleave.counts(sequences).tolist()
    components = tuple(
        ComponentDescription(
            name=component.name,
            path=component.path,
            num_sequences=pool.num_sequences,
            held_out=pool.num_held_out,
            available=pool.size,
            tokens_available=pool.size * seq_len,
            padding=packing.num_padding / (pool.num_sequences * seq_len),
            dropped=packing.num_dropped,
            max_epochs=component.max_epochs,
            drawn=count,
            tokens=count * seq_len,
            tokens_unique=min(count, pool.size) * seq_len,
            epochs=count / pool.size,
            share=count / max(1, sequences),
            exhausted_at=_exhausted_at(mixture, component.name, there),
        )
        for component, pool, packing, count in zip(
            mixture.config.components, mixture.pools, mixture.packings, counts, strict=True
        )
    )
    shares = tuple(
        SharesDescription(
            step=_first_step_from(mixture, segment.start),
            shares={name: share / WHOLE for name, share in zip(mixture.names, segment.shares, strict=True)},
        )
        for segment in mixture.interleave.segments
        if segment.start < sequences
    )
    return MixtureDescription(
        steps=there,
        batch_size=sizes.first,
        batch_sizes=tuple((step, size) for step, size in sizes.listed() if step < max(there, 1)),
        seq_len=seq_len,
        tokens=sequences * seq_len,
        tokens_unique=mixture.num_unique_tokens(there),
        components=components,
        shares=shares,
        warnings=_warnings(mixture, components, steps=steps, there=there),
        digest=mixture.digest,
    )


def to_text(description: MixtureDescription) -> str:
    """The description as tables for people."""
    d = description
    header = (
        "component",
        "share",
        "sequences",
        "padding",
        "held out",
        "trained on",
        "tokens",
        "drawn",
        "epochs",
        "exhausted",
    )
    rows = [
        (
            c.name,
            _percent(c.share),
            f"{c.num_sequences:,}",
            _percent(c.padding),
            f"{c.held_out:,}" if c.held_out else "-",
            f"{c.available:,}",
            _compact(c.tokens_available),
            _compact(c.tokens),
            f"{c.epochs:.3g}" if c.epochs < 100 else f"{c.epochs:,.0f}",
            "-" if c.exhausted_at is None else f"step {c.exhausted_at:,}",
        )
        for c in d.components
    ]
    unused = sum(c.tokens_available for c in d.components) - d.tokens_unique
    lines = [
        *align([header, *rows], left={0}),
        "",
        f"steps           {d.steps:,} of {d.batch_size:,} x {d.seq_len:,} tokens"
        + "".join(f", from step {step:,} on of {size:,}" for step, size in d.batch_sizes[1:]),
        f"tokens          {d.tokens:,}, of which unique {d.tokens_unique:,} "
        f"({_percent(d.tokens_unique / max(1, d.tokens))}); "
        + (f"{_compact(unused)} there are never seen" if unused else "all there are"),
        f"mixture         {d.digest[:12]}",
    ]
    if len(d.shares) > 1:
        shown = d.shares[:_MAX_COLUMNS]
        header = ("shares from", *(f"step {s.step:,}" for s in shown))
        shares = [(c.name, *(_percent(s.shares[c.name]) for s in shown)) for c in d.components]
        lines += ["", *align([header, *shares], left={0})]
        if len(d.shares) > len(shown):
            lines.append(f"... and {len(d.shares) - len(shown):,} more changes, the last at step {d.shares[-1].step:,}")
    if d.warnings:
        lines += ["", *(f"warning: {warning}" for warning in d.warnings)]
    return "\n".join(lines)


def _warnings(
    mixture: Mixture, components: tuple[ComponentDescription, ...], *, steps: int, there: int
) -> tuple[str, ...]:
    found = []
    if there < steps:
        found.append(
            f"the mixture ends after {there:,} of {steps:,} steps: all that has a weight there is exhausted; training "
            f"will refuse to begin"
        )
    if late := [stage.start for stage in mixture.config.stages if stage.start >= steps]:
        found.append(f"the stages {_steps(late)} on never begin: the run has {steps:,} steps")
    if idle := [repr(c.name) for c in components if c.drawn == 0]:
        found.append(f"components never drawn: {_some(idle)}")
    for c in components:
        if c.padding > MUCH_PADDING:
            found.append(
                f"{100 * c.padding:.0f}% of the sequences of component {c.name!r} is padding; see DataConfig.packing"
            )
        if c.epochs > MANY_EPOCHS:
            found.append(
                f"component {c.name!r} is gone through {c.epochs:.1f} times; beyond {MANY_EPOCHS} repeated text is "
                f"worth less and less (Muennighoff et al. 2023, https://arxiv.org/abs/2305.16264)"
            )
    stores = mixture.manifests
    for c in components:
        same = [repr(o.name) for o in components if o is not c and o.drawn and stores[o.name] == stores[c.name]]
        if c.held_out and same:
            found.append(f"what is held out of {c.name!r} is trained on as {_some(same)}, which is the same store")
    return tuple(found)


def _steps(steps: list[int]) -> str:
    return "from step " + _some([f"{step:,}" for step in steps])


def _some(items: list[str]) -> str:
    """The first few of them."""
    return ", ".join(items[:3]) + (f" and {len(items) - 3:,} more" if len(items) > 3 else "")


def _exhausted_at(mixture: Mixture, name: str, steps: int) -> int | None:
    draw = mixture.interleave.exhausted.get(name)
    return None if draw is None or draw > mixture.sizes.offset(steps) else mixture.sizes.step_of(draw - 1)


def _first_step_from(mixture: Mixture, draw: int) -> int:
    """The first step that begins at that draw or after it."""
    step = mixture.sizes.step_of(draw)
    return step if mixture.sizes.offset(step) == draw else step + 1


def _percent(share: float) -> str:
    return "-" if share == 0 else f"{100 * share:.2f}%" if share >= 1e-4 else f"{100 * share:.1g}%"


def _compact(number: int) -> str:
    """At most four digits and a unit."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= 10 * size or (unit == "K" and number >= 1e5):
            return f"{number / size:,.4g} {unit}"
    return f"{number:,}"
