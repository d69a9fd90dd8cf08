"""The beginning of an attempt: its number, its record, its directory, and the request that its body gets."""

import contextlib
import functools
import hashlib
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from marin_core import faults, leases, staging
from marin_core.code import Reach
from marin_core.code.loading import loaded_otherwise
from marin_core.encoding import digest
from marin_core.errors import ConflictError, MarinCoreError, UsageError
from marin_core.graph import Node
from marin_core.handles import Input, Out, Work
from marin_core.launchers import MORTAL
from marin_core.launchers.worker import SCRIPT_MODULE, Request
from marin_core.processes import this_host
from marin_core.records import AttemptRecord, Digests, Failure, FileEntry, to_json
from marin_core.running.attempts import Attempt, close, failure_of, told, user
from marin_core.running.ledger import Ledger
from marin_core.steps import Step, find_steps, replace_steps, typed_value
from marin_core.store import Store

_SCRIPT_NAMES = (b"__main__", SCRIPT_MODULE.encode())


def begin(
    store: Store,
    node: Node,
    lease: leases.Holding,
    *,
    run_id: str,
    reason: str,
    arguments: Mapping[str, Any],
    inputs: dict[str, str],
    launcher: str = "",
    fresh: bool = False,
) -> Attempt:
    """Makes the attempt's directory, record and request.

    Args:
        store: the prefix.
        node: the step.
        lease: the lease that this attempt commits under.
        run_id: the run that makes it.
        reason: why it is made.
        arguments: what the body gets, with `Input` and values in place of steps; `Out` and `Work` are added here.
        inputs: output digest by upstream address.
        launcher: the kind of launcher that gets the job.
        fresh: begin with an empty `Work`, for what was asked to be made anew; only the tries of one run go on from
            each other then.

    Raises:
        PrefixError: the prefix cannot be written.
        UsageError: an argument cannot be sent to another process.
        LeaseLostError: another runner has taken the step over, and its `Work` with it.
    """
    record = _enter(store, node, lease, run_id=run_id, reason=reason, inputs=inputs, launcher=launcher)
    faults.reached("attempt-recorded")
    key = f"{node.address}/attempts/{record.attempt}"
    directory = store.local / key if store.local else _staging(launcher)
    attempt = Attempt(node=node, record=record, lease=lease, directory=directory, inputs=inputs, prefix=store.url)
    try:
        with told(store):
            os.mkdir(f"{directory}/out")  # noqa: PTH102
            request = _request(store, attempt, arguments, fresh=fresh)
            with open(f"{directory}/request.pickle", "wb", buffering=0) as f:  # noqa: PTH123
                f.write(pickle.dumps(request))
    except MarinCoreError as e:
        with contextlib.suppress(MarinCoreError):
            close(store, attempt, state="failed", failure=failure_of(e))
        raise
    faults.reached("request-written")
    return replace(attempt, script=request["script"])


def _staging(launcher: str) -> Path:
    """A directory for an attempt on a remote prefix. It ends with this process if the body does."""
    staging.sweep()
    if launcher in MORTAL:
        return staging.owned_directory("attempt")
    return Path(tempfile.mkdtemp(prefix="marin-attempt-"))


def _enter(
    store: Store,
    node: Node,
    lease: leases.Holding,
    *,
    run_id: str,
    reason: str,
    inputs: dict[str, str],
    launcher: str,
) -> AttemptRecord:
    """Writes the record of an attempt under the first number that nobody has: a runner that was overtaken, and does not
    know yet, may be choosing one at the same time."""
    record = AttemptRecord(
        address=node.address,
        attempt=0,
        epoch=lease.epoch,
        run_id=run_id,
        state="running",
        digests=Digests(
            recipe=node.recipe_digest,
            code=node.code.digest,
            environment=node.environment,
            inputs=digest([inputs[a] for a in node.upstream]),
        ),
        reason=reason,
        started_at=time.time(),
        ended_at=None,
        host=this_host().split(":")[0],
        user=user(),
        pid=os.getpid(),
        log="",
        launcher=launcher,
    )
    number = max((int(n) for n in store.names(f"{node.address}/attempts") if n.isdigit()), default=0)
    while True:
        number += 1
        key = f"{node.address}/attempts/{number}"
        numbered = replace(record, attempt=number, log=f"{key}/log.txt")
        try:
            store.swap(f"{key}/attempt.json", to_json(numbered).encode(), expected=None)
        except ConflictError:
            continue
        return numbered


def _request(store: Store, attempt: Attempt, arguments: Mapping[str, Any], *, fresh: bool) -> Request:
    node = attempt.node
    passed = dict(arguments)
    for name, role in node.step.function.roles.items():
        if role == "out":
            passed[name] = Out(store.child(f"{attempt.key}/out"), staging=str(attempt.directory / "out"))
        elif role == "work":
            work_key = node.work_key(attempt.record.digests.inputs)
            passed[name] = work = Work(store.child(work_key), epoch=attempt.lease.epoch)
            work.claim()
            if fresh:
                work.clear()
    function = node.step.function
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        packed = pickle.dumps(passed)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as e:
        raise UsageError(f"step {node.name}: its arguments cannot be sent to another process: {e}") from e
    # A class of the script among the arguments makes it necessary too; a mere text with that word does no harm.
    needs_script = any(name in packed or name.decode() == function.__module__ for name in _SCRIPT_NAMES)
    return {
        "module": function.__module__,
        "function": function.__qualname__,
        "script": os.path.abspath(main) if main and needs_script else None,  # noqa: PTH100
        "arguments": packed,
        "sys_path": tuple(p or str(Path.cwd()) for p in sys.path),
        "result": str(attempt.directory / "result.json"),
        "name": node.name,
        "sources": _sources(node),
    }


def check_place(store: Store, node: Node) -> None:
    """Raises `UsageError` if the body of a step could not be given what it asks for under this prefix."""
    if store.local is None and "work" in node.step.function.roles.values():
        raise UsageError(
            f"step {node.name}: Work is a directory that attempts on any host go on in, which prefix {store.url} has "
            "none of; choose a prefix on a file system that they share, or let the body keep its checkpoints at a URL "
            "that an ignored argument names"
        )


def arguments_for(step: Step, run: Ledger, *, launcher: str) -> dict[str, Any]:
    """The arguments of a body: upstream steps replaced by `Input` or by their value, as the annotation says."""

    try:
        return _arguments(step, run, launcher=launcher)
    except RecursionError as e:
        raise UsageError(f"step {run.graph.handles[step]}: a value among its arguments is nested too deep") from e


def _arguments(step: Step, run: Ledger, *, launcher: str) -> dict[str, Any]:
    def committed(upstream: Step) -> Input:
        if upstream.external is not None:
            return Input(upstream.external)
        node = run.nodes[run.graph.handles[upstream]]
        url = run.store.child(f"{node.address}/attempts/{node.attempt}/out")
        return Input(url, cache="" if run.store.local else str(inputs_cache(run, launcher=launcher)))

    def value(upstream: Step) -> Any:
        return typed_value(upstream, run.nodes[run.graph.handles[upstream]].value)

    roles = step.function.roles
    return {
        name: replace_steps(argument, committed if roles.get(name) == "input" else value)
        for name, argument in step.arguments.items()
    }


def given_to(step: Step, run: Ledger) -> dict[str, tuple[FileEntry, ...]]:
    """The committed outputs that a body on a local prefix gets as `Input`; see `Attempt.given`."""
    roles, found = step.function.roles, {}
    for name, argument in step.arguments.items() if run.store.local is not None else ():
        for upstream in find_steps(argument) if roles.get(name) == "input" else ():
            if upstream.external is None:
                node = run.nodes[run.graph.handles[upstream]]
                found[f"{node.address}/attempts/{node.attempt}/out"] = run.files[node.address]
    return found


def inputs_cache(run: Ledger, *, launcher: str) -> Path:
    """Where the bodies of a run keep what they fetch from a remote prefix, on whichever host they are."""
    name = staging.owned_name("inputs", run.run_id) if launcher in MORTAL else f"marin-inputs-{run.run_id}"
    return Path(tempfile.gettempdir()) / name


def changed_source(node: Node, *, in_process: bool) -> Failure | None:
    """The failure of an attempt whose body would not run the code that its digest names.

    Args:
        node: the step.
        in_process: the body runs in this process, with the modules that it has loaded.
    """
    if in_process and (path := loaded_otherwise(node.code.files)) is not None:
        message = f"{path} was edited after this process loaded it; start it again, or use the process launcher"
        return Failure(type="SourceChanged", message=message, traceback="", exit_code=1)
    edited = node.code.changed_files()
    if not edited or Reach().again(node.code).digest == node.code.digest:
        return None
    message = f"{edited[0]} was edited after the plan was made; run the command again"
    return Failure(type="SourceChanged", message=message, traceback="", exit_code=1)


def _sources(node: Node) -> dict[str, tuple[int, int, str]]:
    """A step's sources as they are before `changed_source` looks at them: a body loads these, or fails."""
    found = {}
    for path in node.code.files:
        with contextlib.suppress(OSError):
            seen = os.stat(path)  # noqa: PTH116
            stamp = seen.st_mtime_ns, seen.st_size
            found[os.fspath(path)] = *stamp, _text(path, stamp)
    return found


@functools.lru_cache(maxsize=4096)
def _text(path: Path, _stamp: tuple[int, int]) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
