"""Identity: the recipe, environment and inputs digests of a step.

The recipe of a step is its function's name, its version and its arguments (`encoding`). An upstream step stands in it
as the digest of its own recipe or, if it has a version, as its name and version: a version is a promise of what the
step is, so an accepted drift of it makes nothing below it anew, and what a rebuild brings forth arrives there as a
changed input. Host, prefix, working directory, resources, ignored arguments and hash seed enter nothing here.
"""

import functools
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from marin_core.code import Reach
from marin_core.encoding import Encoded, Encoder, digest, found_by_name
from marin_core.errors import EncodingError, UsageError
from marin_core.steps import Step


def recipe_of(step: Step, recipes: Mapping[Step, str], *, reach: Reach) -> tuple[dict[str, Encoded], tuple[type, ...]]:
    """The recipe as JSON (``function``, ``version`` and the encoded ``arguments``, ignored ones left out), and the
    classes of the instances among the arguments.

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
    return recipe, tuple(encoder.classes)


def environment_digest(source: Path | None) -> str:
    """Digest of Python's version and the nearest ``uv.lock`` above ``source``, or else the installed distributions."""
    return _environment_digest(source.parent if source else None)


@functools.cache
def _environment_digest(directory: Path | None) -> str:
    python = ".".join(map(str, sys.version_info[:3]))
    for ancestor in (directory, *directory.parents) if directory else ():
        lock = ancestor / "uv.lock"
        if lock.is_file():
            return digest({"python": python, "lock": hashlib.sha256(lock.read_bytes()).hexdigest()})
    return digest({"python": python, "packages": installed_packages()})


@functools.cache
def installed_packages() -> dict[str, str]:
    """Installed distributions: normalised name -> version. Of two with one name, the one that imports find."""
    from email.parser import HeaderParser
    from importlib.metadata import distributions

    parser = HeaderParser()
    found: dict[str, str] = {}
    for distribution in distributions():
        # `name` and `version` would each parse the whole file, long description and all, three times in all.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or distribution.read_text("")
        headers = parser.parsestr((text or "").partition("\n\n")[0])
        if name := headers["Name"]:
            found.setdefault(name.lower().replace("_", "-"), headers["Version"])
    return dict(sorted(found.items()))
