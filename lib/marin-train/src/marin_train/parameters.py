"""The parameter table: every parameter of a model declared once, and everything else derived from the declaration.

A `Parameter` states a leaf's path, shape, named dims, role, initializer and its place in a Hugging Face checkpoint.
From the table follow initial values (`init_model`), shardings (`marin_train.mesh`), optimizer groups
(`marin_train.optim`), parameter and FLOP counts (`marin_train.flops`), and interchange. Counting allocates nothing.

The invariant: a model's leaf paths are exactly the table's paths. A leaf that is not in the table is an error, never
a default, because a default is how a new leaf ends up decayed, unsharded or uncounted.

A leaf's initial value is a function of (seed, path, layer) alone, so that adding, removing or reordering leaves leaves
the others as they were, and a deeper model starts with the layers of a shallower one. Padding is layout: a padded leaf
starts as the same leaf unpadded, followed by zeros.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from marin_train.errors import ParameterError

Role = Literal["matrix", "expert", "embed", "head", "router", "gain", "conv", "bias"]

LAYER = "layer"
"""The dim along which identical layers are stacked; always the first."""

VOCAB = "vocab"
"""The dim of tokens, which may be padded so that it can be sharded."""


@dataclass(frozen=True)
class Normal:
    """Independent normal values with mean 0."""

    std: float

    def __call__(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return self.std * jax.random.normal(key, shape, jnp.float32)


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float

    def __call__(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return jnp.full(shape, self.value, jnp.float32)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One leaf of a model.

    Args:
        path: attribute names from the model's root, joined by dots: ``layers.attention.query``.
        shape: sizes, one a dim. A matrix maps its second-last dim to its last one.
        dims: names of the dims; `marin_train.mesh` gives each a mesh axis or none.
        role: what the leaf is to the optimizer and to the counts.
        init: its initial value.
        hf_key: its name in a Hugging Face checkpoint, with ``{layer}`` where layers are stacked here.
        hf_transpose: whether that checkpoint holds the matrix as (out, in).
        padding: how many entries at the end of its dim ``vocab`` only fill that up. They start at zero, their gradient
            is zero, and they are neither counted nor exported.
        multiplied: the share of the leaf that a token is multiplied by, in matrix products, on its way forward: 1 for
            a matrix, 0 for a lookup or an element-wise gain, k / num_experts for an expert.
        first_layer: the number in that checkpoint of the first of the layers that are stacked here.
    """

    path: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    role: Role
    init: Normal | Constant
    hf_key: str
    hf_transpose: bool = False
    padding: int = 0
    multiplied: float = 0.0
    first_layer: int = 0

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.dims):
            raise ParameterError(f"{self.path}: shape {self.shape} has {len(self.shape)} dims, named are {self.dims}")
        if LAYER in self.dims[1:]:
            raise ParameterError(f"{self.path}: the dim {LAYER!r} must be the first, not {self.dims}")
        if self.padding and self.dims.count(VOCAB) != 1:
            raise ParameterError(f"{self.path}: only a dim {VOCAB!r} is padded, named are {self.dims}")

    @property
    def real_shape(self) -> tuple[int, ...]:
        """The shape without padding."""
        return tuple(n - self.padding * (dim == VOCAB) for n, dim in zip(self.shape, self.dims, strict=True))

    @property
    def size(self) -> int:
        """The number of values, those that pad it left out."""
        return math.prod(self.real_shape)


def matrix(
    path: str, shape: tuple[int, int], *, dims: tuple[str, str], hf_key: str, role: Role = "matrix", padding: int = 0
) -> Parameter:
    """A projection whose products keep the variance of their input: its standard deviation is 1 / sqrt(in).

    Args:
        path: where it is in the model.
        shape: (in, out).
        dims: their names.
        hf_key: its name in a Hugging Face checkpoint, which holds it as (out, in).
        role: what it is to the optimizer.
        padding: entries that only fill up its dim ``vocab``.
    """
    return Parameter(
        path=path,
        shape=shape,
        dims=dims,
        role=role,
        init=Normal(shape[0] ** -0.5),
        hf_key=hf_key,
        hf_transpose=True,
        padding=padding,
        multiplied=1.0,
    )


def gain(path: str, size: int, *, dim: str, hf_key: str, init: float = 1.0) -> Parameter:
    """A vector of element-wise factors.

    Args:
        path: where it is in the model.
        size: how many.
        dim: the dim's name.
        hf_key: its name in a Hugging Face checkpoint.
        init: what they start at: 1, or 0 where 1 is added to them.
    """
    return Parameter(path=path, shape=(size,), dims=(dim,), role="gain", init=Constant(init), hf_key=hf_key)


def stacked(
    parameters: Iterable[Parameter], *, path: str, num_layers: int, hf_key: str, first_layer: int = 0
) -> tuple[Parameter, ...]:
    """The parameters of identical layers, stacked along a leading layer dim; none of no layer.

    Args:
        parameters: one layer's, by paths and names within the layer.
        path: where the layers are in the model.
        num_layers: how many.
        hf_key: where they are in a Hugging Face checkpoint, with ``{layer}`` for the number.
        first_layer: the first one's number there.
    """
    return tuple(
        dataclasses.replace(
            p,
            path=f"{path}.{p.path}",
            shape=(num_layers, *p.shape),
            dims=(LAYER, *p.dims),
            hf_key=f"{hf_key}.{p.hf_key}",
            first_layer=first_layer,
        )
        for p in parameters
        if num_layers
    )


@dataclass(frozen=True)
class ParameterTable:
    """The declared leaves of a model, in the order of its forward pass."""

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        paths = [p.path for p in self.parameters]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise ParameterError(f"declared twice in the parameter table: {', '.join(twice)}")

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def __getitem__(self, path: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.path == path:
                return parameter
        raise ParameterError(f"{path} is a leaf of the model but not in its parameter table; declare it there")

    @property
    def size(self) -> int:
        """The number of values in all leaves, those that pad them left out."""
        return sum(p.size for p in self.parameters)

    @property
    def active_size(self) -> int:
        """The number of values that a token meets: of an expert's, the share of tokens that see it."""
        return round(sum(p.size * (p.multiplied if p.role == "expert" else 1) for p in self.parameters))

    @property
    def non_embedding_size(self) -> int:
        """The number of values without those of embedding and head."""
        return sum(p.size for p in self.parameters if p.role not in ("embed", "head"))

    @property
    def stored_size(self) -> int:
        """The number of values that memory holds, padding included."""
        return sum(math.prod(p.shape) for p in self.parameters)


def map_parameters(fn: Callable[[Parameter], Any], table: ParameterTable, model: Any) -> Any:
    """A tree of the model's structure holding `fn` of each leaf's declaration.

    Args:
        fn: of a declaration.
        table: the declarations.
        model: any tree whose leaves have the paths of the table.

    Raises:
        ParameterError: a leaf is not declared, or one declared is missing, naming it.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(model)
    paths = [dotted(path) for path, _ in leaves]
    values = [fn(table[path]) for path in paths]
    missing = sorted({p.path for p in table} - set(paths))
    if missing:
        raise ParameterError(f"declared in the parameter table but not a leaf of the model: {', '.join(missing)}")
    return jax.tree_util.tree_unflatten(treedef, values)


def dotted(path: Any) -> str:
    """A leaf's path as the table writes it, from jax's."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def build(module: type[eqx.Module], leaves: Mapping[str, Any], *, prefix: str = "") -> Any:
    """A module out of its leaves; a field without a leaf is None where its type allows that.

    Args:
        module: its type.
        leaves: by path.
        prefix: what stands before the module's own names in these paths.

    Raises:
        ParameterError: a field has no leaf and its type demands one.
    """
    fields: dict[str, Any] = {}
    for name, annotation in get_type_hints(module).items():
        path = f"{prefix}{name}"
        part = _module_in(annotation)
        if part is not None and (part is annotation or any(leaf.startswith(f"{path}.") for leaf in leaves)):
            fields[name] = build(part, leaves, prefix=f"{path}.")
        elif path in leaves or type(None) in get_args(annotation):
            fields[name] = leaves.get(path)
        else:
            raise ParameterError(f"{path} is a field of {module.__name__} but not in its parameter table; declare it")
    return module(**fields)


def _module_in(annotation: Any) -> type[eqx.Module] | None:
    """The module that a field holds, or may hold beside None; None of an array."""
    found = [t for t in (annotation, *get_args(annotation)) if isinstance(t, type) and issubclass(t, eqx.Module)]
    return found[0] if found else None


def init_model(module: type[eqx.Module], table: ParameterTable, *, seed: int) -> Any:
    """A freshly initialized model in float32; traceable, so that `jax.jit` can place each leaf as it is drawn.

    Args:
        module: the model's type.
        table: its leaves.
        seed: of all draws.

    Raises:
        ParameterError: the table and the module's leaves differ.
    """
    model = build(module, {p.path: _initial(p, seed) for p in table})
    map_parameters(lambda parameter: parameter.path, table, model)
    return model


def _initial(parameter: Parameter, seed: int) -> Float[Array, "..."]:
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(parameter.path.encode()))
    if parameter.dims[0] != LAYER:
        values = parameter.init(key, parameter.real_shape)
        return jnp.pad(
            values, [(0, padded - n) for padded, n in zip(parameter.shape, parameter.real_shape, strict=True)]
        )
    layers = jnp.arange(parameter.shape[0])
    # A loop compiles in half the time of a batched draw; the values are the same.
    return jax.lax.map(lambda layer: parameter.init(jax.random.fold_in(key, layer), parameter.shape[1:]), layers)
