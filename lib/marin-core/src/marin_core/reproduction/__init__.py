"""Reproduction: makes a committed step a second time, from nothing but its record, and compares.

The record says commit, patch, lock file, script and flags (`records.Origin`). They are brought together in a clean
checkout (`checkouts`), the script brings the step and all its ancestors up to date under a fresh, empty prefix, and
what comes out is compared with what was recorded (`certificates`). The certificate lies beside the step, in
``{address}/reproductions/``.

Invariant: nothing that the original run made can reach the second one. Its prefix, its caches and its checkout are
other directories; only adopted data is shared, which is read-only and named by its content, so that data which has
changed gives its dependants another address.
"""

import contextlib
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from marin_core.errors import UsageError
from marin_core.provenance import objects
from marin_core.reading.catalogue import Catalogue
from marin_core.records import Origin, StepRecord, origin_of, to_json
from marin_core.reproduction import certificates, checkouts
from marin_core.reproduction.certificates import Certificate, Comparison
from marin_core.reproduction.rebuilding import Rebuilding, Tell
from marin_core.store import Store, default_prefix


def reproduce(
    address: str,
    *,
    prefix: str | None = None,
    repository: Path | None = None,
    keep: Path | None = None,
    tell: Tell = lambda _: None,
) -> Certificate:
    """Makes a committed step and its ancestors again in a clean checkout, and compares.

    Args:
        address: the step's address, or its name for the newest.
        prefix: where it is recorded; default ``MARIN_PREFIX`` or ``./.marin``. The certificate is written there.
        repository: the repository that holds the commit; default the one it was recorded in, or one around the working
            directory or the prefix.
        keep: a new directory for the checkout, its outputs and its log; default a temporary one.
        tell: gets a line of what the script says while it runs.

    Raises:
        UsageError: it cannot be made again, with the reason: no such step, no repository, no commit, an input is gone.
    """
    catalogue = Catalogue.of(prefix or default_prefix())
    store, record = catalogue.store, committed_step(catalogue, address)
    origin, patch = _recorded(store, record)
    near = [Path.cwd(), *([store.local] if store.local else [])]
    found = checkouts.repository_of(origin, named=repository, near=near)
    started = time.time()
    with _scratch(keep) as scratch:
        rebuilding = Rebuilding(store=store, record=record, origin=origin, repository=found, scratch=scratch, tell=tell)
        rebuilding.prepare(patch)
        steps, explanation = rebuilding.compared()
    certificate = Certificate(
        address=record.address,
        reproduced=all(s.reproduced is not False for s in steps) and not explanation,
        explanation=explanation or _first_difference(steps),
        made_at=started,
        seconds=time.time() - started,
        run_id=record.run_id,
        commit=origin.commit,
        patch=origin.patch or "",
        lock=origin.lock,
        command=tuple(rebuilding.command),
        interpreter=rebuilding.interpreter.what,
        notes=tuple(rebuilding.notes),
        steps=tuple(steps),
    )
    key = certificate_key(certificate)
    store.write(f"{key}.json", to_json(certificate).encode())
    store.write(f"{key}.txt", f"{certificates.as_text(certificate)}\n".encode("utf-8", "backslashreplace"))
    return certificate


def certificate_key(certificate: Certificate) -> str:
    """Where a certificate lies under the prefix, without ``.json`` or ``.txt``."""
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(certificate.made_at))
    return f"{certificate.address}/reproductions/{when}-{certificate.made_at % 1 * 1e6:06.0f}"


def committed_step(catalogue: Catalogue, text: str) -> StepRecord:
    """The committed record of a step, given by its address or by its name for the newest.

    Raises:
        UsageError: there is none.
        CorruptRecordError: its record cannot be read.
        NewerRecordError: its record is of a later version.
    """
    address, _ = catalogue.find_step(text)
    found = catalogue.record(address)
    if isinstance(found, StepRecord):
        return found
    raise found or UsageError(f"{address}: nothing is committed there under {catalogue.store.url}")


def _recorded(store: Store, record: StepRecord) -> tuple[Origin, bytes]:
    """Origin and patch of a step, if it can be made again at all."""
    origin, step = origin_of(record), f"step {record.address}"
    if origin is None or not origin.script:
        raise UsageError(f"{step} was made by no script, so there is none to run again")
    if not origin.commit:
        raise UsageError(
            f"{step}: its script {origin.script} was in no commit of a repository; commit it and run again"
        )
    if origin.patch is None:
        raise UsageError(f"{step}: its patch was not recorded ({'; '.join(origin.omitted)}); commit and run again")
    patch = objects.get(store, origin.patch) if origin.patch else b""
    if patch is None:
        raise UsageError(f"{step}: its patch is gone from objects/{origin.patch}, or damaged")
    return origin, patch


@contextlib.contextmanager
def _scratch(keep: Path | None) -> Generator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="marin-reproduce-", ignore_cleanup_errors=True) as directory:
            yield Path(directory).resolve()
        return
    try:
        keep.mkdir(parents=True)
    except OSError as e:
        raise UsageError(f"--keep {keep}: {e.strerror}; name a directory that does not exist yet") from e
    yield keep.resolve()


def _first_difference(steps: Sequence[Comparison]) -> str:
    found = next((s for s in steps if s.reproduced is False), None)
    return f"the first to differ is {found.address}: {found.explanation}" if found else ""
