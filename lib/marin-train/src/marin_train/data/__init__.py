"""From token stores on disk to batches: a pure function of (manifests, mixture, seed, step), in numpy alone.

    store.py         one token store, checked against its manifest
    directories.py   its files, in a local directory or behind a URL
    blocks.py        a remote store's token ids: checked blocks, kept on the local disk
    stream.py        rows of token ids and mask bits from anywhere in it, gathered at the speed of memory
    packing.py       cuts a store's stream of tokens into training sequences
    permutation.py   a keyed permutation of any range with random access: the order of an epoch
    mixture.py       which sequence of which store each batch holds
    loader.py        reads the next batches while the device computes

Nothing here imports jax: a data order can be stated, diffed and explained without a device.
"""
