"""The mixture: which sequence of which store each batch holds, as a pure function of step.

Two closed forms, neither with any state:

- *Whose turn.* Number all draws of the run 0, 1, 2, ... Among the first n, the heaviest component gets ``round(n p)``,
  p being its exact share; the draws it leaves are numbered anew and split among the rest in the same way, and so on.
  Every count is thus known without walking the draws before it. At every prefix a count is off its share by at most
  half of ``1 + (1 + 1/2 + ... + 1/(K - 1))`` for K components: heaviest first, each rounding is spread over what comes
  after it. Shares are fractions, so nothing drifts, and a weight of 1e-12 still gets its turn.
- *Which sequence.* A component's k-th draw is sequence ``permutation(k mod size)`` of epoch ``k // size``, the
  permutation keyed by (seed, component name, epoch). It knows nothing of the other components: removing one, or
  changing a weight, moves the draws in time but never reorders them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from marin_train.configs import DataConfig
from marin_train.data.packing import Sequences, pack
from marin_train.data.permutation import Permutation
from marin_train.data.store import TokenStore
from marin_train.errors import ConfigError, TokenStoreError


@dataclass(frozen=True)
class Draws:
    """A run of consecutive draws: each one's component, and how often that component was drawn before.

    Attributes:
        component: Int64[n], index into the weights.
        ordinal: Int64[n].
    """

    component: np.ndarray
    ordinal: np.ndarray


class Interleave:
    """Whose turn it is: exact proportions at every prefix, random access in O(components).

    Args:
        weights: component name -> weight; any positive finite number. The decimal that was written counts
            (0.1 is a tenth), not the binary fraction nearest to it.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        exact = [(_exact_weight(name, weight), name, i) for i, (name, weight) in enumerate(weights.items())]
        exact.sort(key=lambda entry: (-entry[0], entry[1]))
        self.num_components = len(exact)
        rest, self._levels = sum((w for w, _, _ in exact), Fraction(0)), []
        for weight, _, component in exact:
            self._levels.append((component, weight / rest))
            rest -= weight

    def counts(self, num_draws: int) -> np.ndarray:
        """How often each component comes among the first ``num_draws``: Int64[components], summing to it."""
        counts = np.zeros(self.num_components, np.int64)
        for component, share in self._levels:
            counts[component] = taken = _taken(num_draws, share)
            num_draws -= taken
        return counts

    def draws(self, start: int, stop: int) -> Draws:
        """Draws ``start`` to ``stop``, at a cost that does not depend on ``start``."""
        component, ordinal = np.empty(stop - start, np.int64), np.empty(stop - start, np.int64)
        slots = np.arange(stop - start)
        for index, share in self._levels:
            first, last = _taken(start, share), _taken(start + len(slots), share)
            turns = np.array([_turn(k, share) - start for k in range(first, last)], np.int64)
            component[slots[turns]] = index
            ordinal[slots[turns]] = np.arange(first, last)
            slots = np.delete(slots, turns)
            start -= first
        return Draws(component, ordinal)


class Mixture:
    """Weighted token stores as batches. ``batch(step)`` may be asked for any step, in any order, on any host.

    Args:
        stores: component name -> its open store.
        config: weights, sequence length and seed.
        batch_size: sequences a step.
    """

    def __init__(self, stores: Mapping[str, TokenStore], config: DataConfig, *, batch_size: int) -> None:
        self.stores, self.config, self.batch_size = stores, config, batch_size
        self.names = tuple(component.name for component in config.components)
        self._packings = tuple(pack(stores[name], config) for name in self.names)
        self.sizes = tuple(packing.num_sequences for packing in self._packings)
        for name, size in zip(self.names, self.sizes, strict=True):
            if size == 0:
                raise TokenStoreError(
                    f"component {name!r}: {stores[name].path} holds {stores[name].num_tokens} tokens, not enough for "
                    f"one sequence of {config.seq_len} + 1; lower DataConfig.seq_len or give it more text"
                )
        self._interleave = Interleave({c.name: c.weight for c in config.components})

    @classmethod
    def open(cls, config: DataConfig, *, batch_size: int, vocab_size: int) -> Self:
        """Opens every component's store and checks that they fit each other and the model.

        Args:
            config: the mixture.
            batch_size: sequences a step.
            vocab_size: rows of the model's embedding; no store may have more ids.

        Raises:
            TokenStoreError: a store is absent or damaged, has more ids than the model, or another tokenizer.
        """
        stores = {component.name: TokenStore.open(component.path) for component in config.components}
        first = config.components[0].name
        for name, store in stores.items():
            if store.vocab_size > vocab_size:
                raise TokenStoreError(
                    f"component {name!r}: {store.path} has vocab_size={store.vocab_size}, the model "
                    f"{vocab_size}; set ModelConfig.vocab_size to at least the store's"
                )
            if (store.tokenizer_digest, store.eos_id) != (stores[first].tokenizer_digest, stores[first].eos_id):
                raise TokenStoreError(
                    f"components {first!r} and {name!r} were tokenized differently: tokenizers "
                    f"{stores[first].tokenizer_digest[:12]} and {store.tokenizer_digest[:12]}, eos "
                    f"{stores[first].eos_id} and {store.eos_id}; tokenize both with one tokenizer"
                )
        return cls(stores, config, batch_size=batch_size)

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
        """That tokenizer's ``bos`` and ``eos``."""
        return self.stores[self.names[0]].manifest["special_ids"]

    @property
    def digest(self) -> str:
        """sha256 of all that decides the order of tokens, but not of where the stores lie."""
        return hashlib.sha256(json.dumps(self._identity(), sort_keys=True).encode()).hexdigest()

    def _identity(self) -> dict[str, Any]:
        components = [
            {"name": c.name, "weight": c.weight, "manifest": self.stores[c.name].digest} for c in self.config.components
        ]
        # The order in which components are listed decides nothing.
        return {
            "components": sorted(components, key=lambda c: c["name"]),
            "seq_len": self.config.seq_len,
            "seed": self.config.seed,
            "batch_size": self.batch_size,
        }

    def draws(self, step: int) -> Draws:
        """Which component's which draw each row of the batch of ``step`` (counted from 0) is."""
        return self._interleave.draws(step * self.batch_size, (step + 1) * self.batch_size)

    def sequence_numbers(self, component: int, ordinals: np.ndarray) -> np.ndarray:
        """Where a component's draws lie in its store: its epochs' permutations at Int64[n] ordinals."""
        size, name = self.sizes[component], self.names[component]
        epochs, within = np.divmod(ordinals, size)
        out = np.empty(len(ordinals), np.int64)
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            out[rows] = _epoch_order(size, self.config.seed, name, epoch)(within[rows])
        return out

    def batch(self, step: int) -> Sequences:
        """The batch of ``step``, counted from 0; its sequences have what the packing gives them."""
        draws, rows, parts = self.draws(step), [], []
        for component in np.unique(draws.component).tolist():
            rows.append(np.flatnonzero(draws.component == component))
            numbers = self.sequence_numbers(component, draws.ordinal[rows[-1]])
            parts.append(self._packings[component].read(numbers))
        order = np.argsort(np.concatenate(rows))
        joined: list[Any] = [None if x[0] is None else np.concatenate(x)[order] for x in zip(*parts, strict=True)]
        return Sequences(*joined)

    def num_unique_tokens(self, num_steps: int) -> int:
        """Predicted tokens that the first ``num_steps`` batches hold, each counted once however often it came."""
        counts = self._interleave.counts(num_steps * self.batch_size)
        return sum(min(int(n), size) for n, size in zip(counts, self.sizes, strict=True)) * self.config.seq_len


def digest_batch(batch: Sequences) -> str:
    """sha256 of a batch's tokens and mask."""
    hasher = hashlib.sha256()
    for part in batch:
        if part is not None:
            hasher.update(np.ascontiguousarray(part).tobytes())
    return hasher.hexdigest()


@lru_cache(maxsize=256)
def _epoch_order(size: int, seed: int, name: str, epoch: int) -> Permutation:
    return Permutation(size, key=json.dumps([seed, name, epoch]))


def _exact_weight(name: str, weight: float) -> Fraction:
    try:
        exact = Fraction(str(weight))
    except ValueError:
        exact = Fraction(0)
    if exact <= 0:
        raise ConfigError(f"Component.weight={weight} of {name!r} must be positive and finite")
    return exact


def _taken(num_draws: int, share: Fraction) -> int:
    """Turns that ``share`` gets among the first ``num_draws``: the nearest integer, halves up."""
    return (2 * num_draws * share.numerator + share.denominator) // (2 * share.denominator)


def _turn(k: int, share: Fraction) -> int:
    """The draw that is the k-th turn: the last n with ``_taken(n, share) == k``."""
    return -(-share.denominator * (2 * k + 1) // (2 * share.numerator)) - 1
