"""Identity: the recipe and inputs digests of a step.

The recipe of a step is its function's name, its version and its arguments (`encoding`). An upstream step stands in it
as the digest of its own recipe or, if it has a version, as its name and version: a version is a promise of what the
step is, so an accepted drift of it makes nothing below it anew, and what a rebuild brings forth arrives there as a
changed input. Host, prefix, working directory, resources, ignored arguments and hash seed enter nothing here.
"""

from collections.abc import Mapping
from typing import Any

from marin_core.code import Reach
from marin_core.encoding import Encoded, Encoder, found_by_name
from marin_core.errors import EncodingError, UsageError
from marin_core.steps import Step


def recipe_of(step: Step, recipes: Mapping[Step, str], *, reach: Reach) -> tuple[dict[str, Encoded], tuple[Any, ...]]:
    """The recipe as JSON (``function``, ``version`` and the encoded ``arguments``, ignored ones left out), and the
    functions and the classes of the instances among the arguments.

    Args:
        step: the handle.
        recipes: the recipe digests of upstream steps.
        reach: the look at the workspace that functions are digested with.

    Raises:
        EncodingError: an argument has no canonical encoding.
        UsageError: another process would not find the step's function by its name.
    """

    def of_step(other: Step) -> str:
        if other not in recipes:
            raise EncodingError(
                f"{other!r} is hidden in an argument of step {step.name}; pass it as an argument, or within lists, "
                "tuples, dict values, dataclass fields or partials"
            )
        return f"{other.name}/{other.version}" if other.version else recipes[other]

    function = step.function.function
    if found_by_name(function) is not function:
        raise UsageError(
            f"step {step.name}: {function.__module__}.{function.__qualname__} no longer is the function that this step "
            "was made of (it was defined twice, or wrapped); give each step function a name of its own, and put @step "
            "outermost"
        )
    encoder = Encoder(of_step, reach)
    arguments = {
        name: encoder.encode(value, f"{step.name}({name}")
        for name, value in step.arguments.items()
        if name not in step.function.ignore
    }
    recipe = {"function": reach.name_of(function), "version": step.version, "arguments": arguments}
    return recipe, tuple(encoder.reached)
