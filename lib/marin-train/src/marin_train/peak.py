"""The rates that speed is compared with: what this machine's matrix products reach, measured and not looked up.

A data sheet's number would be wrong for most machines that run this (virtual cores, shared sockets, lower clocks), and
would make an MFU that no code could reach. Measured at a run's first start and recorded with it: the rate under the
run's policy, of which utilisation is a fraction, and the plain float32 rate, by which machines are compared. They also
settle which operands a policy has (`marin_train.policy.choose`).
"""

import math
import time
from functools import cache

from marin_train.policy import Policy, Precision

_SIZE = 1024
"""Large enough to reach the peak, small enough that one of many repetitions runs undisturbed."""
_SECONDS = 0.2
"""For each type of operands."""


@cache  # of the machine, and so the same for all runs that a process starts
def peak_flops(operands: tuple[Precision, ...]) -> dict[Precision, float]:
    """The best rate of a square float32 product, over all devices: FLOP/s, two a multiply-add.

    Args:
        operands: the types to which operands are rounded before they are multiplied; they are measured in turns, so
            that another process disturbs all alike.
    """
    import jax
    import jax.numpy as jnp

    from marin_train.blocks import contract

    a = jnp.ones((_SIZE, _SIZE), jnp.float32)

    def compiled(precision: Precision) -> jax.stages.Wrapped:
        policy = Policy(operands=precision)
        product = jax.jit(lambda x, y: contract("mk,kn->mn", x, y, policy=policy))
        product(a, a).block_until_ready()
        return product

    products = {precision: compiled(precision) for precision in operands}
    best, stop = dict.fromkeys(products, math.inf), time.perf_counter() + _SECONDS * len(products)
    while time.perf_counter() < stop:
        for precision, product in products.items():
            start = time.perf_counter()
            product(a, a).block_until_ready()
            best[precision] = min(best[precision], time.perf_counter() - start)
    devices = jax.devices()
    # Virtual devices on one CPU share its cores.
    num_devices = 1 if devices[0].platform == "cpu" else len(devices)
    return {precision: 2 * _SIZE**3 / seconds * num_devices for precision, seconds in best.items()}
