"""The rates that speed is compared with: what this machine's matrix products reach, measured and not looked up.

A data sheet's number would be wrong for most machines that run this (virtual cores, shared sockets, lower clocks), and
would make an MFU that no code could reach. Measured once at a run's first start and recorded with it: the rate under
the run's policy, of which utilisation is a fraction, and the plain float32 rate, by which machines are compared.
"""

import time
from functools import cache

from marin_train.policy import Policy, Precision

_SIZE = 1024
"""Large enough to reach the peak, small enough that one of many repetitions runs undisturbed."""
_SECONDS = 0.25


@cache  # of the machine, and so the same for all runs that a process starts
def peak_flops(operands: Precision) -> float:
    """The best rate of a square float32 product, over all devices: FLOP/s, two a multiply-add.

    Args:
        operands: the type to which operands are rounded before they are multiplied.
    """
    import jax
    import jax.numpy as jnp

    from marin_train.blocks import contract

    a = jnp.ones((_SIZE, _SIZE), jnp.float32)
    product = jax.jit(lambda x, y: contract("mk,kn->mn", x, y, policy=Policy(operands=operands)))
    product(a, a).block_until_ready()
    best, stop = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < stop:
        start = time.perf_counter()
        product(a, a).block_until_ready()
        best = min(best, time.perf_counter() - start)
    devices = jax.devices()
    # Virtual devices on one CPU share its cores.
    return 2 * _SIZE**3 / best * (1 if devices[0].platform == "cpu" else len(devices))
