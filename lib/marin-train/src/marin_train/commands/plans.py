"""``describe`` and ``data``: what a run will be and what it will be trained on, before it is run."""

from marin_train.commands.console import Config, Number, OtherConfig, Overrides, print_result


def describe(config: Config, /, *, devices: Number = None, set_: Overrides = (), json: bool = False) -> None:
    """Show a run's parameters, counts, mesh, memory and cost; nothing is allocated and no data are read.

    Example: marin-train describe nano.toml

    Args:
        config: the run's configuration, .json or .toml, nested like TrainConfig.
        devices: how many there will be, for a mesh axis that takes those that are left.
        set_: override one field, by its dotted name; may be given again.
        json: print the description as JSON.
    """
    from marin_train.config_files import load
    from marin_train.description import describe, to_text

    description = describe(load(config, overrides=set_), num_devices=devices)
    print_result(description if json else to_text(description))


def data(
    config: Config,
    /,
    *,
    steps: Number = None,
    diff: OtherConfig = None,
    step: Number = None,
    set_: Overrides = (),
    json: bool = False,
) -> None:
    """Show what a run takes from each component of its mixture, which of its steps another mixture changes, or what one
    step is trained on.

    Example: marin-train data nano.toml --diff nano-more-code.toml

    Args:
        config: the run's configuration, .json or .toml; its token stores are opened, no token is read.
        steps: steps to look at, instead of the run's.
        diff: another run's configuration, to compare the two mixtures step by step.
        step: list this step's rows, counted from 0: component, sequence, and its tokens in the store.
        set_: override one field, by its dotted name; may be given again.
        json: print the result as JSON.
    """
    from marin_train.config_files import load
    from marin_train.data import description, differences, listing
    from marin_train.data.mixture import Mixture
    from marin_train.errors import ConfigError

    runs = [load(config, overrides=set_), *([load(diff)] if diff else [])]
    num_steps = runs[0].steps if steps is None else steps
    if num_steps < 1:
        raise ConfigError(f"--steps {num_steps}: must be positive")
    if step is not None and (step < 0 or diff):
        raise ConfigError(f"--step {step}: must be 0 or more, and not beside --diff")
    mixtures = [Mixture.of_run(run) for run in runs]
    if step is not None:
        rows = listing.list_rows(mixtures[0], step)
        print_result([row.to_dict() for row in rows] if json else listing.to_text(rows, step=step))
    elif diff:
        difference = differences.diff(*mixtures, steps=num_steps)
        print_result(difference.to_dict() if json else differences.to_text(difference))
    else:
        described = description.describe(mixtures[0], num_steps)
        print_result(described.to_dict() if json else description.to_text(described))
