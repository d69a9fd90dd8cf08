"""Bytecode: what Python keeps of a compiled source in ``__pycache__``, and when that must not be believed.

Python takes a ``.pyc`` for its source's if the source's size and the whole second of its modification time are those in
the header. A source that is edited within that second, to the same size, thus runs as it was before the edit, while its
digest is that of the new text. As git does with its index ("racily clean"), bytecode that was written so soon after its
source is not believed: it is removed, and the next import compiles the text as it stands.

See: PEP 3147, and ``importlib._bootstrap_external.SourceLoader``.
"""

import contextlib
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

_SETTLED_NS = 2_000_000_000
"""Nanoseconds after its source from which bytecode is believed; a coarse file system's clock ticks every 2 s."""


def forget_racy(sources: Iterable[Path]) -> None:
    """Removes the bytecode of sources that were changed about when it was written; what cannot be removed stays."""
    for source in sources:
        with contextlib.suppress(OSError, NotImplementedError):
            compiled = importlib.util.cache_from_source(os.fspath(source))
            if os.stat(compiled).st_mtime_ns < os.stat(source).st_mtime_ns + _SETTLED_NS:  # noqa: PTH116
                os.unlink(compiled)  # noqa: PTH108
