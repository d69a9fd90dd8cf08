"""The ray backend: the same tasks, placed by Ray on the nodes of a cluster.

Ray decides where a task runs and says when it has died; nothing else is left to it. Rows travel through files, as
with every backend, so all nodes must see the file system on which the work directory and the output lie. Each task
looks for a probe of the driver's there, and for the driver's library versions, before it begins: a node that is another
world is an error that names it, not a different result.

A node that Ray has given up may go on writing for a while, and Ray may wait for minutes for a task there. So the driver
looks itself for tasks on nodes that are no more, and each try of a task writes into a directory of its own,
and the driver moves the files of the try whose record it accepts to where the task's files belong. What a ghost still
writes lies in a directory that nobody reads.

A worker that dies takes one task with it, and a node as many as it had workers; they are tried again. The task that
has lost two workers is at fault, as in the process backend; the loss of its node is not held against it as soon.
"""

from __future__ import annotations

import importlib.util
import logging
import pickle
import secrets
import shutil
import socket
import sys
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_zephyr.backends import clusters
from marin_zephyr.backends.memory import merge_memory
from marin_zephyr.backends.pickling import dumps
from marin_zephyr.backends.worker import import_engine, load_spec, outcome
from marin_zephyr.durability import writing
from marin_zephyr.errors import MissingExtraError, OutputError, UsageError, WorkerDiedError
from marin_zephyr.fingerprints import library_versions
from marin_zephyr.specs import StageSpec, TaskInput

if TYPE_CHECKING:
    from marin_zephyr.records import TaskRecord

_log = logging.getLogger(__name__)

_WORKERS = 2
"""A task that has lost so many workers is at fault."""
_NODES = 5
"""So too with nodes, but machines that are lent go in numbers."""
_IN_FLIGHT = 2
"""Tasks handed to Ray per CPU: the next one lies ready where one ends, and its scheduler never holds thousands."""
_LOOK = 2.0
"""Seconds without an outcome after which the driver looks for dead nodes."""
_NODE = "node"
"""A file in a try's directory: where it runs."""
_END = 10.0
"""Seconds to wait for cancelled tasks to end; what they write is in nobody's way."""
_SAME = "give all nodes the same packages and code as the driver, as in one image"
_ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class _Orders:
    """What every task of a stage must know. Sent once; a worker process asks for it once."""

    blob: bytes
    """The pickled `StageSpec`."""
    probe: Path
    token: str
    memory: int
    """Bytes that a task may hold in external merges."""
    versions: dict[str, str]
    path: tuple[str, ...]
    """The driver's ``sys.path``: what it imports by name from a shared file system, nodes find there too."""


@dataclass(kw_only=True)
class _Stage:
    """What remains of the stage that is running."""

    spec: StageSpec
    inputs: dict[int, TaskInput]
    waiting: deque[int]
    running: dict[Any, tuple[int, Path]] = field(default_factory=dict)
    """Ray's reference to an outcome -> the task, and where this try of it writes."""
    workers: Counter[int] = field(default_factory=Counter)
    """Task -> workers that were lost under it."""
    nodes: Counter[int] = field(default_factory=Counter)


class RayBackend:
    """Runs tasks on a Ray cluster, one CPU a task.

    Args:
        address: as ``ray.init`` takes it. By default ``RAY_ADDRESS``, else a cluster of this machine, else one that is
            started for this backend and ends with it. A process that has joined a cluster already stays in it.
        workers: tasks at a time; by default as many as the cluster has CPUs.
        memory: bytes for all tasks together; each task's share is set aside by Ray. By default nothing is.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None, memory: int | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingExtraError(
                "backend='ray' needs the extra `ray`: pip install 'marin-zephyr[ray]'"
                " (in the workspace: uv run --extra ray ...)"
            )
        self._address = address
        self._workers = workers
        self._memory = memory
        self._joined = False
        self.num_retries = 0

    def run(self, spec: StageSpec, tasks: Sequence[tuple[int, TaskInput]]) -> Generator[TaskRecord]:
        """See `marin_zephyr.backends.Backend.run`.

        Raises:
            UsageError: no cluster can be reached, or its nodes cannot run these tasks.
            OutputError: a node does not see the directory to which the stage writes.
        """
        import ray

        from marin_zephyr.context import MEMORY

        self._joined = clusters.join(self._address, cpus=self._workers) or self._joined
        share = None if self._memory is None else self._memory // (self._workers or _num_cpus(ray))
        if share is not None:
            clusters.check_room(share)
        stage = _Stage(spec=spec, inputs=dict(tasks), waiting=deque(index for index, _ in tasks))
        token = secrets.token_hex(8)
        with _tries(spec.home) as tries:
            probe = tries / "probe"
            probe.write_text(token)
            orders = _Orders(
                blob=dumps(spec),
                probe=probe,
                token=token,
                memory=MEMORY if share is None else merge_memory(share),
                versions=library_versions(),
                path=tuple(str(Path(entry).absolute()) for entry in sys.path),
            )
            shared = [ray.put(orders)]  # in a list, or each task would be sent the whole
            submit = ray.remote(_on_node).options(
                name=f"zephyr {spec.name}",
                num_cpus=1,
                max_retries=0,
                memory=share,
                runtime_env={"env_vars": _ONE_THREAD},
            )
            try:
                while stage.waiting or stage.running:
                    limit = self._limit(ray)
                    while stage.waiting and len(stage.running) < limit:
                        index = stage.waiting.popleft()
                        home = tries / f"{index:05d}-{secrets.token_hex(4)}"
                        reference = submit.remote(token, shared, index, stage.inputs[index], home)
                        stage.running[reference] = (index, home)
                    yield from self._collect(ray, stage)
            finally:
                _cancel(ray, stage)

    def close(self) -> None:
        """Leaves the cluster, if this backend joined it; one that was started for it ends."""
        if self._joined:
            import ray

            self._joined = False
            ray.shutdown()

    def _limit(self, ray: Any) -> int:
        """How many tasks may be with Ray now; clusters grow and shrink."""
        return self._workers or _IN_FLIGHT * _num_cpus(ray)

    def _collect(self, ray: Any, stage: _Stage) -> Iterator[TaskRecord]:
        """Waits for an outcome, and takes all that are there; if none comes, looks for those that never will."""
        if not ray.wait(list(stage.running), num_returns=1, timeout=_LOOK)[0]:
            self.num_retries += _give_up(ray, stage)
            return
        ready, _ = ray.wait(list(stage.running), num_returns=len(stage.running), timeout=0)
        for reference in ready:
            index, home = stage.running.pop(reference)
            try:
                what, value = pickle.loads(ray.get(reference))  # noqa: S301  from our own worker
            except ray.exceptions.RayTaskError as e:
                why = str(e).strip().rpartition("\n")[2]
                raise UsageError(f"a node of the Ray cluster cannot run tasks: {why}; {_SAME}") from e
            except ray.exceptions.RayError as e:
                with_node = isinstance(e, (ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError))
                _bury(stage, index, str(e), with_node=with_node)
                self.num_retries += 1
                continue
            if what == "failed":
                raise value
            _accept(value, home, stage.spec.home)
            yield value


def _num_cpus(ray: Any) -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


@contextmanager
def _tries(home: Path) -> Generator[Path]:
    """A directory for what is not accepted yet. Those of runs that were killed go with it."""
    tries = home / "tries"
    with writing(home):
        shutil.rmtree(tries, ignore_errors=True)
        tries.mkdir(parents=True, exist_ok=True)
    try:
        yield tries
    finally:
        shutil.rmtree(tries, ignore_errors=True)


def _accept(record: TaskRecord, source: Path, home: Path) -> None:
    """Moves a try's files to where the task's belong, and its record last."""
    from marin_zephyr.records import record_path

    with writing(home):
        for file in record.files:
            (home / file.name).parent.mkdir(exist_ok=True)
            (source / file.name).replace(home / file.name)
        record_path(source, record.index).replace(record_path(home, record.index))
        shutil.rmtree(source, ignore_errors=True)


def _give_up(ray: Any, stage: _Stage) -> int:
    """Buries tasks on nodes that are no more; how many."""
    num_buried = 0
    gone = {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
    for reference, (index, home) in list(stage.running.items()):
        with suppress(FileNotFoundError):
            if (home / _NODE).read_text() in gone:
                del stage.running[reference]
                ray.cancel(reference, force=True)
                _bury(stage, index, "the cluster has given it up", with_node=True)
                num_buried += 1
    return num_buried


def _bury(stage: _Stage, index: int, why: str, *, with_node: bool) -> None:
    """A task was lost with its worker or its node: it is tried again, unless that has happened too often."""
    losses, most = (stage.nodes, _NODES) if with_node else (stage.workers, _WORKERS)
    losses[index] += 1
    how = f"lost its {'node' if with_node else 'worker'} ({why.strip().partition('. ')[0]})"
    task = f"task {index} of {stage.spec.name} ({stage.inputs[index].name})"
    if losses[index] >= most:
        fix = "give it less at a time (shard_bytes), or look at its input"
        raise WorkerDiedError(f"{task}: {how}, {most} times; {fix}")
    _log.warning("%s: %s; trying once more", task, how)
    stage.waiting.appendleft(index)


def _cancel(ray: Any, stage: _Stage) -> None:
    """Ends what still runs, so that nothing goes on behind the caller's back."""
    running = list(stage.running)
    stage.running.clear()
    with suppress(ray.exceptions.RayError, ConnectionError):
        for reference in running:
            ray.cancel(reference, force=True)
        if running:
            ray.wait(running, num_returns=len(running), timeout=_END)


# On a node

_held: dict[str, _Orders] = {}


def _on_node(token: str, shared: list[Any], index: int, task_input: TaskInput, home: Path) -> bytes:
    """One try of a task, in a worker process of Ray's."""
    import ray

    if token not in _held:
        _held.clear()  # one stage at a time
        _held[token] = ray.get(shared[0])
        import_engine()
    node = ray.get_runtime_context().get_node_id()
    return outcome(partial(_attempt, _held[token], index, task_input, home, node))


def _attempt(orders: _Orders, index: int, task_input: TaskInput, home: Path, node: str) -> TaskRecord:
    from marin_zephyr.tasks import run_task

    _check_node(orders)
    sys.path += [entry for entry in orders.path if entry not in sys.path]
    home.mkdir()
    (home / _NODE).write_text(node)
    return run_task(replace(load_spec(orders.blob), home=home), index, task_input, memory=orders.memory)


def _check_node(orders: _Orders) -> None:
    """Whether this node is in the driver's world.

    Raises:
        OutputError: it sees another file system.
        UsageError: it has other libraries.
    """
    name = socket.gethostname()
    try:
        seen = orders.probe.read_text()
    except OSError:
        seen = ""
    if seen != orders.token:
        directory = orders.probe.parent.parent
        raise OutputError(
            f"{directory}: the Ray node {name} does not see the driver's directory of that name; put work_dir and the"
            " output on storage that all nodes share"
        )
    for library, version in library_versions().items():
        if version != orders.versions.get(library):
            here = f"the Ray node {name} has {library} {version or '(none)'}"
            raise UsageError(f"{here}, the driver {orders.versions.get(library)}; {_SAME}")
