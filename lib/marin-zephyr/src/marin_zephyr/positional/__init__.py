"""Positional work: operations that rest on where a row stands, not on what it holds. One file an operation.

Those that cut stages have ``expand(builder, node) -> Open``, as keyed operations do; the others are passes over the
frames of one shard, found by their node's type in `marin_zephyr.operations`.

- `unions`         the rows of several datasets, one after the other
- `repartitioning` the same rows in the same order, cut into another number of shards
- `taking`         the first rows
- `sampling`       each row or not, by the hash of its position
- `exploding`      one row for each member of a list
- `windows`        a function of some consecutive rows, or of all rows of a shard
"""
