"""What the C library does with the blocks that a restore frees: it gives them back, and does not keep them.

Threads that read allocate blocks of some megabytes. By default glibc hands such blocks out of memory that each thread
keeps for itself once it has freed the first of them, and a restore's peak then stands a tenth of the state above what
is in use. A training step wants the opposite: blocks that it allocates again and again should not come back as fresh
pages.

See: mallopt(3), ``M_MMAP_THRESHOLD``.
"""

import ctypes
from collections.abc import Generator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**25
"""What glibc's own adjustment comes to once a process has freed blocks of that size."""


@contextmanager
def blocks_given_back(size: int = 2**20) -> Generator[None]:
    """Within it, blocks of at least ``size`` bytes go back to the system when they are freed.

    Afterwards they are kept up to the largest size that glibc would choose by itself. Other C libraries are left alone.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        yield
        return
    set_option(_MMAP_THRESHOLD, size)
    try:
        yield
    finally:
        set_option(_MMAP_THRESHOLD, _LARGEST)
        set_option(_TRIM_THRESHOLD, 2 * _LARGEST)
