"""Fleet: what machines there are to be and what is to run on them, as frozen dataclasses read from YAML.

A specification is a statement, not a script: it names pools (machines of one type from one provider) and jobs (a
command on a pool), and nothing happens by reading it. A small one::

    name: laptop
    pools:
      - name: here
        type: cpu
        ranks: 4
    jobs:
      - name: hello
        pool: here
        command: [python, -c, "import os; print(os.environ['RANK'])"]

Invariant: a `Fleet` that exists makes sense: names are unique, every job's pool is there, every type can be asked for.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from marin_rigging.accelerators import Accelerator, parse
from marin_rigging.errors import AcceleratorError, SpecError

PROVIDERS = ("local",)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Machines of one type from one provider.

    Attributes:
        name: lower-case letters, digits and dashes.
        provider: who gives the machines; ``local`` is this one.
        type: accelerator type, such as ``cpu`` or ``v5p-64``.
        ranks: processes of a job; by default one for each VM of the type.
    """

    name: str
    provider: str = "local"
    type: str = "cpu"
    ranks: int | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.provider not in PROVIDERS:
            raise SpecError(f"provider={self.provider!r} is not one of {', '.join(PROVIDERS)}", field="provider")
        try:
            parse(self.type)
        except AcceleratorError as error:
            raise SpecError(str(error), field="type") from error
        if self.ranks is not None and self.ranks < 1:
            raise SpecError(f"ranks={self.ranks} must be at least 1", field="ranks")

    @property
    def accelerator(self) -> Accelerator:
        """The parsed ``type``."""
        return parse(self.type)

    @property
    def num_ranks(self) -> int:
        """Processes of a job on this pool."""
        return self.ranks or self.accelerator.num_vms


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command to run as every rank of a pool.

    Attributes:
        name: lower-case letters, digits and dashes.
        pool: name of the pool.
        command: program and arguments; no shell reads them.
        env: variables added to each rank's environment.
        cwd: working directory; the caller's by default.
    """

    name: str
    pool: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    cwd: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not self.command:
            raise SpecError("command is empty; name a program, such as [python, train.py]", field="command")
        for variable in self.env:
            if not _VARIABLE.fullmatch(variable):
                raise SpecError(f"env has {variable!r}, which cannot name a variable", field="env")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Pools and the jobs that run on them.

    Attributes:
        name: lower-case letters, digits and dashes.
        pools: at least one, names unique.
        jobs: names unique, each on one of the pools.
    """

    name: str
    pools: tuple[Pool, ...]
    jobs: tuple[Job, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not self.pools:
            raise SpecError("pools is empty; a fleet has at least one", field="pools")
        for what, names in (("pools", [p.name for p in self.pools]), ("jobs", [j.name for j in self.jobs])):
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                raise SpecError(f"{what} has the name {repeated[0]!r} twice", field=what)
        for job in self.jobs:
            if job.pool not in (pools := [p.name for p in self.pools]):
                raise SpecError(f"job {job.name!r} wants pool {job.pool!r}, pools are {', '.join(pools)}", field="jobs")

    def pool(self, name: str | None = None) -> Pool:
        """The pool of that name, or the only one."""
        return _pick("pool", self.pools, name)

    def job(self, name: str | None = None) -> Job:
        """The job of that name, or the only one."""
        return _pick("job", self.jobs, name)

    @classmethod
    def read(cls, path: str | Path) -> "Fleet":
        """Read a YAML specification.

        Args:
            path: the file.

        Returns:
            The fleet.

        Raises:
            SpecError: the file is not there, is no YAML, or does not make sense; with file, line and field.
        """
        from marin_rigging.specification import read

        return read(Path(path))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"name={name!r} must be 1 to 40 lower-case letters, digits and dashes, with no dash at an end", field="name"
        )


def _pick[Named: (Pool, Job)](what: str, items: Sequence[Named], name: str | None) -> Named:
    names = ", ".join(item.name for item in items) or "none"
    if name is None:
        if len(items) == 1:
            return items[0]
        raise SpecError(f"the fleet has {len(items)} {what}s ({names}); say which with --{what}", field=what)
    for item in items:
        if item.name == name:
            return item
    raise SpecError(f"{what} {name!r} is not in the fleet; it has {names}", field=what)
