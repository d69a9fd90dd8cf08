"""Delivery: what a body leaves when it ran where its driver cannot watch it, laid down under the prefix.

    {address}/attempts/{n}/exit.json   the exit code; on a remote prefix the manifest of the uploaded output as well

`exit.json` is written last, by the node that ran the body. Invariant: once it stands, the result, the log and the
output stand too, so a driver that comes back a week later learns what became of the body, and no process has had to
wait for it with the answer. Without it the body is running, or it is lost.
"""

from dataclasses import dataclass
from pathlib import Path

from marin_core.launchers import Job
from marin_core.records import SCHEMA, FileEntry, from_json, to_json
from marin_core.store import Store, manifest, open_store

_NAME = "exit.json"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How a body ended."""

    exit_code: int
    uploaded: bool = False
    """The output was brought to the prefix; otherwise the body wrote it there in place."""
    files: tuple[FileEntry, ...] = ()
    """The manifest of an uploaded output."""
    schema: int = SCHEMA


def deliver(job: Job, *, exit_code: int) -> Delivery:
    """Lays down what a body of this machine has left, then says that it has ended.

    Raises:
        PrefixError: the prefix cannot be written from here.
        UsageError: the output has a link, a pipe or a socket.
    """
    store, directory = open_store(job.prefix, unsafe_single_writer=True), Path(job.request).parent
    delivery = Delivery(exit_code=exit_code)
    if store.local is None:
        files = manifest(directory / "out", durable=False)
        store.upload(directory / "out", f"{job.key}/out")
        for path in (Path(job.log), directory / "result.json"):
            if path.exists():
                store.write(f"{job.key}/{path.name}", path.read_bytes())
        delivery = Delivery(exit_code=exit_code, uploaded=True, files=files)
    store.write(f"{job.key}/{_NAME}", to_json(delivery).encode())
    return delivery


def find(store: Store, key: str) -> Delivery | None:
    """What was delivered for the attempt at a key; None if nothing was, or not yet."""
    data = store.read(f"{key}/{_NAME}")
    return None if data is None else from_json(Delivery, data, where=store.child(f"{key}/{_NAME}"))


def fetch(prefix: str, key: str, *, into: Path) -> Delivery | None:
    """`find`, which also brings log and result from a remote prefix into a local directory. The output stays there."""
    store = open_store(prefix, unsafe_single_writer=True)
    delivery = find(store, key)
    if delivery is not None and store.local is None:
        for name in ("log.txt", "result.json"):
            if (data := store.read(f"{key}/{name}")) is not None:
                (into / name).write_bytes(data)
    return delivery
