"""From token stores on disk to batches: a pure function of (manifests, mixture, seed, step), in numpy alone.

    store.py         one token store, memory-mapped and checked against its manifest
    plan.py          which stretch of the stream each sequence is, where documents stay apart
    packing.py       a store's stream of tokens as training sequences
    permutation.py   a keyed permutation of any range with random access: the order of an epoch
    mixture.py       which sequence of which store each batch holds
    loader.py        reads the next batches while the device computes

Nothing here imports jax: a data order can be stated, diffed and explained without a device.
"""
