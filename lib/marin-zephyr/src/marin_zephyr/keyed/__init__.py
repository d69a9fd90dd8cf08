"""Keyed work, one file an operation: how its node becomes stages, and the inputs, operations and outputs of those.

Each module has ``expand(builder, node) -> Open``: it opens the node's upstream, closes the stages that feed an
exchange, and returns the stage that reads from it, still open for whatever follows. `marin_zephyr.planning` finds it by
the node's type.

- `distinct`   one row a key, in input order; only digests and positions are exchanged
- `grouping`   aggregates of the rows of a key, combined on both sides of the exchange
- `reducing`   a function of the caller over the rows of each key
- `joining`    rows of two datasets with equal keys, side by side
- `sorting`    all rows in order; ranges of keys are merged from sorted runs

Parts of these: `aggregating` (states of aggregates), `ordering` (rows in key order within memory), `matching` (pairs of
two sorted sides), `sides` (columns of a join) and `lookup` (a join whose right side is small).
"""
