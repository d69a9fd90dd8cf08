"""The mixture: which sequence of which store each batch holds, as a pure function of step.

Two closed forms are joined here, neither with any state: *whose turn* a draw is (`marin_train.data.interleaving`), and
*which sequence* a component's k-th draw is (`marin_train.data.ordering`). A step takes the draws after those of the
step before it, as many as its batch has rows (`marin_train.data.batch_sizes`).

Invariant: ``batch(step)`` depends on (manifest digests, mixture, seed, batch sizes, step) alone: not on the number of
hosts, on restarts, on which steps were asked for before, or on where the stores lie.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from marin_train.configs import BatchStage, DataConfig, TrainConfig
from marin_train.data.batch_sizes import BatchSizes
from marin_train.data.interleaving import Draws, Interleave
from marin_train.data.ordering import Ordering, Pool
from marin_train.data.packing import Sequences, pack
from marin_train.data.store import TokenStore
from marin_train.data.validation import Validation
from marin_train.errors import ConfigError, ExhaustedError, TokenStoreError

_DRAWS_AHEAD = 4096
_MAX_PLANS = 4


class Rows(NamedTuple):
    """Where the rows of a batch lie.

    Attributes:
        component: Int64[batch], index into the mixture's names.
        number: Int64[batch], the sequence in that component's store.
    """

    component: np.ndarray
    number: np.ndarray


class _Plan(NamedTuple):
    """The rows of the steps from ``start`` to ``stop``."""

    start: int
    stop: int
    component: np.ndarray
    number: np.ndarray


class Mixture:
    """Weighted token stores as batches. ``batch(step)`` may be asked for any step, in any order, on any host.

    Args:
        stores: component name -> its open store.
        config: the mixture.
        batch_size: sequences a step.
        batch_stages: other sizes from later steps on.

    Raises:
        ConfigError: the stores have too little for what is held out, or cut away.
        TokenStoreError: a store is too small for one sequence.
    """

    def __init__(
        self,
        stores: Mapping[str, TokenStore],
        config: DataConfig,
        *,
        batch_size: int,
        batch_stages: tuple[BatchStage, ...] = (),
    ) -> None:
        self.stores, self.config, self.sizes = stores, config, BatchSizes(batch_size, batch_stages)
        self.names = tuple(component.name for component in config.components)
        self.packings = tuple(pack(stores[name], config) for name in self.names)
        self.pools = tuple(self._pool(index) for index in range(len(self.names)))
        self.interleave = Interleave(self.names, stages(config, self.sizes), limits=self._limits())
        self._ordering = Ordering(self.pools, seed=config.seed, shuffle=config.shuffle)
        self._plans: tuple[_Plan, ...] = ()

    @classmethod
    def open(
        cls,
        config: DataConfig,
        *,
        batch_size: int,
        batch_stages: tuple[BatchStage, ...] = (),
        vocab_size: int | None = None,
        steps: int = 0,
    ) -> Self:
        """Opens every component's store and checks that they fit each other, the model and the run.

        Args:
            config: the mixture.
            batch_size: sequences a step.
            batch_stages: other sizes from later steps on.
            vocab_size: rows of the model's embedding; no store may have more ids. None where there is no model.
            steps: how many steps there must be data for.

        Raises:
            ConfigError: the stores have too little for what is held out, or cut away.
            ExhaustedError: the components' epoch limits leave less data than ``steps`` need.
            TokenStoreError: a store is absent or damaged, has more ids than the model, or another tokenizer.
        """
        stores = {component.name: TokenStore.open(component.path) for component in config.components}
        first = config.components[0].name
        for name, store in stores.items():
            if vocab_size is not None and store.vocab_size > vocab_size:
                raise TokenStoreError(
                    f"component {name!r}: {store.path} has vocab_size={store.vocab_size}, the model "
                    f"{vocab_size}; set ModelConfig.vocab_size to at least the store's"
                )
            same = (store.tokenizer_digest, store.eos_id) == (stores[first].tokenizer_digest, stores[first].eos_id)
            if not same or len({s.bos_id for s in stores.values()} - {None}) > 1:
                raise TokenStoreError(
                    f"components {first!r} and {name!r} were tokenized differently: tokenizers "
                    f"{stores[first].tokenizer_digest[:12]} and {store.tokenizer_digest[:12]}, eos "
                    f"{stores[first].eos_id} and {store.eos_id}, bos {stores[first].bos_id} and {store.bos_id}; "
                    f"tokenize both with one tokenizer"
                )
        mixture = cls(stores, config, batch_size=batch_size, batch_stages=batch_stages)
        mixture.check_enough(steps)
        return mixture

    @classmethod
    def of_run(cls, config: TrainConfig, *, steps: int = 0) -> Self:
        """The mixture that a run trains on; see `open`."""
        return cls.open(
            config.data,
            batch_size=config.batch_size,
            batch_stages=config.batch_stages,
            vocab_size=config.model.vocab_size,
            steps=steps,
        )

    @property
    def manifests(self) -> dict[str, str]:
        """Component name -> sha256 of its store's manifest."""
        return {name: self.stores[name].digest for name in self.names}

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer that all components share."""
        return self.stores[self.names[0]].tokenizer_file

    @property
    def special_ids(self) -> dict[str, int | None]:
        """The ``bos`` and ``eos`` around the stores' documents: the ``bos`` of those that have one."""
        bos = (store.bos_id for store in self.stores.values() if store.bos_id is not None)
        return {"bos": next(bos, None), "eos": self.stores[self.names[0]].eos_id}

    @property
    def digest(self) -> str:
        """sha256 of all that decides the order of tokens, but not of where the stores lie."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()

    def identity(self) -> dict[str, Any]:
        """All that decides the order of tokens, as plain values."""
        values = asdict(self.config)
        # The order in which components are listed decides nothing, nor does the place of a store.
        components = {c.pop("name"): c for c in values["components"]}
        for name, component in components.items():
            component["manifest"] = self.stores[name].digest
            del component["path"]
            # Nor whether a number was written as 1 or as 1.0, or a weight of 0 at all.
            component["weight"] = float(component["weight"])
            component["max_epochs"] = None if component["max_epochs"] is None else float(component["max_epochs"])
        staged = [
            {"start": stage["start"], "weights": {name: float(w) for name, w in stage["weights"].items() if w}}
            for stage in values["stages"]
        ]
        sizes: dict[str, Any] = {"batch_size": self.sizes.first}
        if self.sizes.stages:
            sizes["batch_stages"] = [asdict(stage) for stage in self.sizes.stages]
        return values | {"components": components, "stages": staged} | sizes

    def draws(self, step: int) -> Draws:
        """Which component's which draw each row of the batch of ``step`` (counted from 0) is."""
        return self.interleave.draws(self.sizes.offset(step), self.sizes.offset(step + 1))

    def rows(self, step: int) -> Rows:
        """Where each row of the batch of ``step`` lies.

        Raises:
            ExhaustedError: the components' epoch limits leave no data for it.
        """
        plan = self._plan(step)
        begin = self.sizes.offset(plan.start)
        window = slice(self.sizes.offset(step) - begin, self.sizes.offset(step + 1) - begin)
        return Rows(plan.component[window], plan.number[window])

    def rows_between(self, start: int, stop: int) -> Rows:
        """Where all rows of the steps ``start`` to ``stop`` lie, one step after the other.

        Raises:
            ExhaustedError: the components' epoch limits leave no data for them.
        """
        draws = self.interleave.draws(self.sizes.offset(start), self.sizes.offset(stop))
        return Rows(draws.component, self._ordering.numbers(draws.component, draws.ordinal))

    def batch(self, step: int, *, rows: slice = slice(None)) -> Sequences:
        """The batch of ``step``, counted from 0, or those of its rows that a host needs; no others are read.

        Raises:
            ExhaustedError: the components' epoch limits leave no data for it.
        """
        where = self.rows(step)
        component, number = where.component[rows], where.number[rows]
        out = self.packings[0].empty(len(component))  # all components are packed alike
        for index in sorted(set(component.tolist())):
            selected = np.flatnonzero(component == index)
            self.packings[index].fill(out, selected, number[selected])
        return out

    def validation(self, name: str) -> Validation:
        """What was held out of a component: the same whatever the seed, the weights and the other components.

        Raises:
            ConfigError: there is no such component.
        """
        if name not in self.names:
            raise ConfigError(f"the mixture has no component {name!r}; it has {', '.join(self.names)}")
        index = self.names.index(name)
        return Validation(self.packings[index], self.pools[index].held_out)

    def num_unique_tokens(self, num_steps: int) -> int:
        """Predicted tokens that the first ``num_steps`` batches hold, each counted once however often it came."""
        counts = self.interleave.counts(self.sizes.offset(num_steps))
        return sum(min(int(n), p.size) for n, p in zip(counts, self.pools, strict=True)) * self.config.seq_len

    @property
    def num_steps(self) -> int | None:
        """How many whole batches there are; None where epoch limits put no end to them."""
        return None if self.interleave.end is None else self.sizes.step_of(self.interleave.end)

    def check_enough(self, steps: int) -> None:
        """Refuses a run that the components' epoch limits leave too little data for.

        Raises:
            ExhaustedError: naming the components, and the tokens asked for and there.
        """
        end, asked = self.interleave.end, self.sizes.offset(steps)
        if end is None or asked <= end:
            return
        limits = ", ".join(
            f"{c.name!r} has {pool.size * self.config.seq_len:,} tokens, max_epochs={c.max_epochs:g}"
            for c, pool in zip(self.config.components, self.pools, strict=True)
            if c.name in self.interleave.exhausted and c.max_epochs is not None
        )
        raise ExhaustedError(
            f"{steps:,} steps ask for {asked * self.config.seq_len:,} tokens, the mixture ends after "
            f"{self.sizes.step_of(end):,} steps and {end * self.config.seq_len:,} tokens: {limits}; lower "
            f"TrainConfig.steps, raise Component.max_epochs, or give weight to a component that has more"
        )

    def _plan(self, step: int) -> _Plan:
        """A plan that holds ``step``: a pure function's values, kept because one call for many steps costs little more.

        Steps that follow one another are planned many at a time, others alone.
        """
        if step < 0:
            raise IndexError(f"step {step} is negative; steps are counted from 0")
        for plan in self._plans:
            if plan.start <= step < plan.stop:
                return plan
        stop = step + 1
        if any(plan.stop == step for plan in self._plans):
            stop = step + max(1, _DRAWS_AHEAD // self.sizes.at(step))
            if self.num_steps is not None:
                stop = max(step + 1, min(stop, self.num_steps))
        plan = _Plan(step, stop, *self.rows_between(step, stop))
        self._plans = (plan, *self._plans[: _MAX_PLANS - 1])
        return plan

    def _pool(self, index: int) -> Pool:
        """How much of a component's store is held out, and trained on."""
        component, total = self.config.components[index], self.packings[index].num_sequences
        store, name, held_out = self.stores[component.name], component.name, component.validation
        if total == 0:
            raise TokenStoreError(
                f"component {name!r}: {store.path} holds {store.num_tokens} tokens, not enough for "
                f"one sequence of {self.config.seq_len} + 1; lower DataConfig.seq_len or give it more text"
            )
        if held_out >= total:
            raise ConfigError(
                f"Component.validation={held_out} of {name!r} leaves nothing to train on: {store.path} holds {total} "
                f"sequences of {self.config.seq_len} tokens; hold out fewer"
            )
        size, cut = total - held_out, self.config.simulated_epoching
        if cut is not None:
            size = size * cut.experiment_tokens // cut.target_tokens
        if cut is not None and size == 0:
            raise ConfigError(
                f"SimulatedEpoching leaves nothing of component {name!r}: {total - held_out} sequences x "
                f"experiment_tokens={cut.experiment_tokens} / target_tokens={cut.target_tokens} is less than one; "
                f"raise experiment_tokens or give it more text"
            )
        return Pool(name, total, held_out, size)

    def _limits(self) -> dict[str, int]:
        """Component name -> how often it may be drawn, of those that have an epoch limit."""
        limits = {}
        for component, pool in zip(self.config.components, self.pools, strict=True):
            if component.max_epochs is not None:
                limits[component.name] = limit = int(Fraction(str(component.max_epochs)) * pool.size)
                if limit == 0:
                    raise ConfigError(
                        f"Component.max_epochs={component.max_epochs} of {component.name!r} is less than one of its "
                        f"{pool.size} sequences; raise it, or leave the component out"
                    )
        return limits


def stages(config: DataConfig, sizes: BatchSizes) -> list[tuple[int, dict[str, float]]]:
    """First draw and weights of every stage, that of the components' own weights first."""
    weights = {component.name: component.weight for component in config.components}
    return [(0, weights), *((sizes.offset(stage.start), stage.weights) for stage in config.stages)]


def digest_batch(batch: Sequences) -> str:
    """sha256 of a batch's tokens and mask, and of its segments and positions where it has them."""
    hasher = hashlib.sha256()
    for part in batch:
        if part is not None:
            hasher.update(np.ascontiguousarray(part).tobytes())
    return hasher.hexdigest()
