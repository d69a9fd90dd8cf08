"""Which rule moves a parameter: by the optimizer's name and the role that the parameter table gives.

Every role has a rule under every name; one without is an error, never a default. Adam, AdamC, Lion and Adafactor move
everything. Muon, SOAP and MuonH move hidden matrices and experts, AdamH the head too. What is left, the head under Muon
and SOAP aside, goes to Adam without decay and at its own rate: a row of an embedding is a token, not a direction of a
matrix, and a gain has no norm to hold.
"""

from typing import Any, Literal

import optax

from marin_train import models
from marin_train.configs import OptimizerConfig, TrainConfig
from marin_train.errors import ParameterError
from marin_train.optim.adafactor import make_adafactor
from marin_train.optim.adamw import make_adamc, make_adamw
from marin_train.optim.cautious import make_cautious
from marin_train.optim.hyperball import scale_by_hyperball, starts_at_zero
from marin_train.optim.lion import make_lion
from marin_train.optim.muon import scale_by_muon
from marin_train.optim.schedules import make_schedule
from marin_train.optim.soap import scale_by_soap
from marin_train.parameters import Constant, ParameterTable, build

Group = Literal["muon", "soap", "adamh", "muonh", "decayed_adam", "adam"]

_OTHERS = ("embed", "router", "gain", "conv", "bias")


def _by_role(hidden: Group, head: Group) -> dict[str, Group]:
    others: dict[str, Group] = dict.fromkeys(_OTHERS, "adam")
    return {"matrix": hidden, "expert": hidden, "head": head} | others


RULES: dict[str, dict[str, Group]] = {
    "muon": _by_role("muon", "decayed_adam"),
    "soap": _by_role("soap", "decayed_adam"),
    "adamh": _by_role("adamh", "adamh"),
    "muonh": _by_role("muonh", "adamh"),
}
"""Name of the optimizer -> role -> group."""


def make_update(config: TrainConfig, table: ParameterTable) -> optax.GradientTransformation:
    """The configured rule for every parameter of the table.

    Raises:
        ParameterError: a role has no rule.
        ConfigError: a matrix that is to be held at its norm starts at zero, or the schedule does not fit into the run.
    """
    optimizer = config.optimizer
    if optimizer.name not in RULES:
        return _whole(config, table)
    groups = {p.path: _group(optimizer.name, p.path, p.role) for p in table}
    for parameter in table:
        if groups[parameter.path] in ("adamh", "muonh") and parameter.init == Constant(0.0):
            raise starts_at_zero(parameter.path)
    labels = build(models.family(config.model).Model, groups)
    return optax.partition({group: _rule(group, config) for group in sorted(set(groups.values()))}, labels)


def _group(name: str, path: str, role: str) -> Group:
    if role not in RULES[name]:
        raise ParameterError(f"{path} has the role {role!r}, for which the optimizer {name!r} has no rule; declare one")
    return RULES[name][role]


def _whole(config: TrainConfig, table: ParameterTable) -> optax.GradientTransformation:
    """A rule that moves every parameter."""
    o, schedule = config.optimizer, make_schedule(config)
    shared: dict[str, Any] = {"weight_decay": o.weight_decay, "cautious": o.cautious}
    if o.name == "lion":
        return make_lion(schedule, table, beta1=o.beta1, beta2=o.beta2, **shared)
    if o.name == "adafactor":
        return make_adafactor(schedule, table, **shared)
    shared |= {"beta1": o.beta1, "beta2": o.beta2, "eps": o.eps}
    if o.name == "adamc":
        return make_adamc(schedule, table, peak=o.learning_rate, **shared)
    return make_adamw(schedule, table, **shared)


def _rule(group: Group, config: TrainConfig) -> optax.GradientTransformation:
    o = config.optimizer
    direction = make_cautious(_direction(group, o), enabled=o.cautious)
    adam_rate = o.learning_rate if o.adam_learning_rate is None else o.adam_learning_rate
    if group in ("adamh", "muonh"):
        return optax.chain(direction, scale_by_hyperball(make_schedule(config)))
    schedule = make_schedule(config, peak=adam_rate if group in ("adam", "decayed_adam") else o.learning_rate)
    decay = optax.identity() if group == "adam" else optax.add_decayed_weights(o.weight_decay)
    return optax.chain(direction, decay, optax.scale_by_learning_rate(schedule))


def _direction(group: Group, optimizer: OptimizerConfig) -> optax.GradientTransformation:
    o = optimizer
    if group in ("muon", "muonh"):
        return scale_by_muon(momentum=o.momentum, ns_steps=o.ns_steps, match_adam=group == "muon")
    if group == "soap":
        return scale_by_soap(beta1=o.beta1, beta2=o.beta2, eps=o.eps, refresh_steps=o.refresh_steps)
    return optax.scale_by_adam(b1=o.beta1, b2=o.beta2, eps=o.eps)
