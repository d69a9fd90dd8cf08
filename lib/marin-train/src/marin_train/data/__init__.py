"""From token stores on disk to batches: a pure function of (manifests, mixture, seed, step), in numpy alone.

    store.py         one token store, checked against its manifest
    directories.py   its files, in a local directory or behind a URL
    blocks.py        a remote store's token ids: checked blocks, kept on the local disk
    stream.py        rows of token ids and mask bits from anywhere in it, gathered at the speed of memory
    packing.py       a store's stream of tokens as training sequences
    document_packing.py  which stretch of the stream each is, where documents stay apart
    permutation.py   keyed permutations of any range with random access
    interleaving.py  whose turn each draw is: exact shares, stages, epoch limits
    ordering.py      which sequence each draw is: the order of an epoch, what is held out or cut away, block shuffle
    mixture.py       the two joined: what each batch holds
    validation.py    a component's held-out sequences as batches
    description.py   what a run will take from each component, before it is run
    listing.py       which tokens of which store each row of a step is
    differences.py   which steps of a run another mixture would change, and why
    loader.py        reads the next batches while the device computes

Nothing here imports jax: a data order can be stated, diffed and explained without a device.
"""
