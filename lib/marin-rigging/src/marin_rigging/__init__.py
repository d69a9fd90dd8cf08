"""Fleets described in a file, and gangs of processes that live and die together.

- `Fleet`, `Pool`, `Job`   the specification: frozen dataclasses, read from YAML by `Fleet.read`.
- `catalog`                accelerator types: chips, hosts, topology, peak speed, memory.

Running is the command line's: ``rig run SPEC -- CMD`` (`marin_rigging.cli`).
"""

from marin_rigging.accelerators import catalog
from marin_rigging.fleet import Fleet, Job, Pool

__all__ = ["Fleet", "Job", "Pool", "catalog"]
