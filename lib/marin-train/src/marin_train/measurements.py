"""What this machine does fastest and how fast it is, as measured at a run's first start and kept for later runs.

Choosing a policy takes seconds, most of them compiling, and is the machine's more than the run's. The choice is kept
below the user's cache directory, so that the next run of that shape on this machine starts without, and computes alike.
Whatever may change a choice is in the key that it is kept under: the versions of what computes, the devices and their
mesh, the shapes. Rates of products take half a second and are measured at every first start; of what was kept and what
is measured the better one holds, because a peak that was measured on a busy machine is none.

What is kept decides the speed and the last digits of a new run, never those of one that goes on: a run's own record
comes first (`marin_train.run_record`).
"""

import dataclasses
import hashlib
import json
import logging
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from marin_train.cache import cache_directory
from marin_train.configs import TrainConfig
from marin_train.durability import to_json, write_whole
from marin_train.errors import ConfigError
from marin_train.peak import peak_flops
from marin_train.policy import Policy, Precision, by_name, choose

logger = logging.getLogger(__name__)

_CPU = ("model name", "flags", "Features")
"""Lines of Linux's /proc/cpuinfo that say which code a compiler makes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """How a run computes on this machine, and how fast its products are.

    Attributes:
        policy: the policy.
        rates: operands of matrix products -> FLOP/s; those of the policy and float32 at least.
        is_earlier: whether the policy was chosen by an earlier run.
    """

    policy: Policy
    rates: dict[Precision, float]
    is_earlier: bool = False


def measure(config: TrainConfig) -> Measurement:
    """The policy that `config` names, or the fastest one, as chosen earlier or now; and the best rates so far.

    Raises:
        ConfigError: `config.policy` is neither ``auto`` nor a policy's name, or none runs on this machine.
    """
    pinned = None if config.policy == "auto" else by_name(config.policy)
    key = _key(config)
    path = cache_directory() / "measurements" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"
    kept = _recall(path)
    operands: set[Precision] = {"float32", "bfloat16" if pinned is None else pinned.operands}
    rates = peak_flops(tuple(sorted(operands)))
    if kept is None:
        found = Measurement(policy=choose(config, rates=rates), rates=rates)
    else:
        if pinned is None:
            logger.info("%s was chosen earlier on this machine; to choose anew, delete %s", kept.policy.name, path)
        best = {precision: max(rate, kept.rates.get(precision, 0.0)) for precision, rate in rates.items()}
        found = Measurement(policy=kept.policy, rates=best, is_earlier=pinned is None)
    if kept is None or found.rates != kept.rates:
        _keep(path, {"policy": found.policy.to_dict(), "rates": found.rates, "key": key})
    return found


def _key(config: TrainConfig) -> dict[str, Any]:
    """All that a measurement depends on."""
    import jax

    device = jax.devices()[0]
    return {
        "versions": {name: version(name) for name in ("marin-train", "jax", "jaxlib")},
        "flags": os.environ.get("XLA_FLAGS", ""),
        "devices": [device.platform, device.device_kind, jax.device_count()],
        "cpu": [platform.machine(), os.cpu_count(), *_cpu_lines()],
        "policy": config.policy,
        "batch": [config.batch_size, config.data.seq_len],
        "model": dataclasses.asdict(config.model),
        "mesh": dataclasses.asdict(config.mesh),
    }


def _cpu_lines() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # another system; its architecture has to do
        return []
    return sorted({line for line in lines if line.startswith(_CPU)})


def _recall(path: Path) -> Measurement | None:
    """What is kept there; None where nothing is, or where it cannot be read."""
    try:
        found = json.loads(path.read_text())
        policy = by_name(Policy.from_dict(found["policy"]).name)
        rates: dict[Precision, float] = {precision: float(rate) for precision, rate in found["rates"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
        logger.warning("%s cannot be read and is measured anew (%r)", path, error)
        return None
    return Measurement(policy=policy, rates=rates)


def _keep(path: Path, values: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, to_json(values))
    except OSError as error:
        logger.info("what was measured is not kept for later runs: %s", error)
