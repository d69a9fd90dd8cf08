"""Objects: large texts that many records refer to, kept once under ``objects/{sha256}``.

Lock files, patches and descriptions of machines. The key is the digest of the content, so writing one twice changes
nothing, two runs that agree share it, and a reader can tell a damaged one.
"""

import hashlib

from marin_core.store import Store


def key(sha256: str) -> str:
    """Where an object lies under the prefix."""
    return f"objects/{sha256}"


def put(store: Store, data: bytes) -> str:
    """Keeps the bytes, if they are not kept yet; returns their sha256 (hex)."""
    sha256 = hashlib.sha256(data).hexdigest()
    if store.read(key(sha256)) != data:
        store.write(key(sha256), data, durable=False)
    return sha256


def get(store: Store, sha256: str) -> bytes | None:
    """The bytes of an object; None when it is not there or no longer what its name says."""
    data = store.read(key(sha256))
    return data if data is not None and hashlib.sha256(data).hexdigest() == sha256 else None
