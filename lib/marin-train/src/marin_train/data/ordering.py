"""Which sequence each draw is: a component's k-th draw is place ``k mod size`` of the order of epoch ``k // size``.

An epoch's order is a permutation of the component's sequences keyed by (seed, component name, epoch). It knows nothing
of the other components: removing one, or changing a weight, moves the draws in time but never reorders them.

Not every sequence of a store is trained on, and what is left out is a function of keys as well:

- *Held out*: the first of a permutation keyed by the component's name alone, so that they are the same whatever seed
  and mixture, and no run trains on what another one is evaluated on.
- *Simulated epoching*: of the rest, the first of a permutation keyed by (seed, name); a larger part holds the smaller.

For stores that are far away an epoch's order keeps to a few blocks at a time: blocks of neighbouring sequences are
permuted, then the sequences of every ``window`` blocks that follow one another (the buffer of a streaming shuffle, as
WebDataset and MosaicML's streaming have it, in closed form). The last block may be short and may come anywhere.

Invariant: each epoch is a permutation of the same sequences, none of them held out.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from marin_train.configs import ShuffleConfig
from marin_train.data.permutation import Permutation, permute


@dataclass(frozen=True)
class Pool:
    """The sequences of one component.

    Attributes:
        name: the component's.
        num_sequences: how many its store has.
        num_held_out: how many of them are for validation.
        size: how many of the rest are trained on.
    """

    name: str
    num_sequences: int
    num_held_out: int
    size: int

    @cached_property
    def held_out(self) -> np.ndarray:
        """Numbers of the sequences held out, in a fixed order: Int64[num_held_out]."""
        order = Permutation(self.num_sequences, key=json.dumps([self.name, "validation"]))
        return order(np.arange(self.num_held_out))

    def skip_held_out(self, places: np.ndarray) -> np.ndarray:
        """The numbers of the sequences that are at these places among those not held out."""
        return places + np.searchsorted(self._gaps, places, side="right")

    @cached_property
    def _gaps(self) -> np.ndarray:
        """For each number held out, ascending, how many that are not lie before it."""
        return np.sort(self.held_out) - np.arange(self.num_held_out)


class Ordering:
    """The orders of all components of a mixture.

    Args:
        pools: the components.
        seed: of the orders.
        shuffle: whether orders keep to blocks.
    """

    def __init__(self, pools: Sequence[Pool], *, seed: int, shuffle: ShuffleConfig) -> None:
        self._pools, self._seed, self._shuffle = tuple(pools), seed, shuffle
        self._sizes = np.array([pool.size for pool in pools], np.int64)
        self._cut = np.array([pool.size < pool.num_sequences - pool.num_held_out for pool in pools])
        self._is_any_cut = bool(self._cut.any())
        self._holding_out = {index for index, pool in enumerate(pools) if pool.num_held_out}
        self._heads = [json.dumps([seed, pool.name])[1:-1] for pool in pools]  # of the keys of epochs, as JSON

    def numbers(self, component: np.ndarray, ordinal: np.ndarray) -> np.ndarray:
        """The sequence in its store that each draw is.

        Args:
            component: Int64[n], which pool.
            ordinal: Int64[n], how often that pool was drawn before.

        Returns:
            Int64[n].
        """
        epoch, place = np.divmod(ordinal, self._sizes[component])
        which, pairs = _number_pairs(component, epoch)
        out = self._order([(self._pools[c].size, self._key(c, e)) for c, e in pairs], which, place)
        if self._is_any_cut and (rows := np.flatnonzero(self._cut[component])).size:
            out[rows] = self._of_whole(component[rows], out[rows])
        for index in self._holding_out.intersection(component.tolist()) if self._holding_out else ():
            rows = component == index
            out[rows] = self._pools[index].skip_held_out(out[rows])
        return out

    def _key(self, component: int, epoch: int) -> str:
        return f"[{self._heads[component]}, {epoch}]"

    def _order(self, keyed: list[tuple[int, str]], which: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The sequences at these places of permutations of the given sizes and keys."""
        if not self._shuffle.block:
            return permute([_permutation(size, key) for size, key in keyed], which, places)
        blocks = [_blocks(size, self._shuffle.block, key) for size, key in keyed]
        return permute_blocks(blocks, which, places, window=self._shuffle.window)

    def _of_whole(self, component: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Under simulated epoching: which of all that may be trained on a sequence of the part is."""
        which, pairs = _number_pairs(component, np.zeros_like(component))
        wholes = [(p.num_sequences - p.num_held_out, json.dumps([self._seed, p.name, "part"])) for p in
                  (self._pools[c] for c, _ in pairs)]  # fmt: skip
        if not self._shuffle.block:
            return permute([_permutation(size, key) for size, key in wholes], which, places)
        # Whole blocks are taken, so that a block of the part is one of the store.
        blocks = [_blocks(size, self._shuffle.block, key) for size, key in wholes]
        return permute_blocks(blocks, which, places, window=1)


@dataclass(frozen=True)
class Blocks:
    """``range(size)`` in blocks of ``block``, the last of which may be short, in the order that ``key`` draws."""

    size: int
    block: int
    key: str

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.size // self.block)

    @cached_property
    def order(self) -> Permutation:
        """Which block comes at each place."""
        return Permutation(self.num_blocks, f"{self.key} blocks")


def permute_blocks(blocks: Sequence[Blocks], which: np.ndarray, places: np.ndarray, *, window: int) -> np.ndarray:
    """The item at each place, when blocks are permuted and then the items of every ``window`` of them.

    Args:
        blocks: the permutations that are needed, all with one length of block.
        which: Int64[n], each item's permutation by its place in ``blocks``.
        places: Int64[n], each below the size of its permutation.
        window: neighbouring blocks whose items are mixed; 1 keeps the order within blocks.

    Returns:
        Int64[n].
    """
    block = blocks[0].block
    orders = [b.order for b in blocks]
    last_blocks = np.array([b.num_blocks - 1 for b in blocks])
    # The last block may be short; where it comes decides where all after it begin.
    tail_place = permute(orders, np.arange(len(blocks)), last_blocks, inverse=True)[which]
    last_block = last_blocks[which]
    tail = np.array([b.size for b in blocks])[which] - last_block * block

    def first_of(place: np.ndarray) -> np.ndarray:
        return place * block - (place > tail_place) * (block - tail)

    def place_of(item: np.ndarray) -> np.ndarray:
        before_tail, after_tail = item // block, (item - tail) // block + 1
        start = tail_place * block
        return np.where(item < start, before_tail, np.where(item < start + tail, tail_place, after_tail))

    if window > 1:
        windows = place_of(places) // window
        first, last = first_of(windows * window), first_of(np.minimum((windows + 1) * window, last_block + 1))
        mixed, pairs = _number_pairs(which, windows)
        # Any item of a window knows the window's size.
        sizes = np.empty(len(pairs), np.int64)
        sizes[mixed] = last - first
        mixes = [
            _permutation(size, f"{blocks[i].key} window {w}")
            for (i, w), size in zip(pairs, sizes.tolist(), strict=True)
        ]
        places = first + permute(mixes, mixed, places - first)
    place = place_of(places)
    return permute(orders, which, place) * block + places - first_of(place)


def _number_pairs(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Numbers the distinct pairs: each row's number, and the pairs."""
    order = np.lexsort((second, first))
    a, b = first[order], second[order]
    new = np.concatenate([[True], (a[1:] != a[:-1]) | (b[1:] != b[:-1])])[: len(a)]
    which = np.empty(len(a), np.int64)
    which[order] = np.cumsum(new) - 1
    return which, list(zip(a[new].tolist(), b[new].tolist(), strict=True))


@lru_cache(maxsize=4096)
def _permutation(size: int, key: str) -> Permutation:
    return Permutation(size, key)


@lru_cache(maxsize=1024)
def _blocks(size: int, block: int, key: str) -> Blocks:
    return Blocks(size, block, key)
