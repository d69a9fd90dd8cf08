"""The device mesh, and where an array lies on it: dims are named, and one rule gives each name its mesh axes.

Parameters, batches and activations name their dims and never their devices. `RULES` is the one place where a name meets
its axes, so that another way to spread a model over machines is another rule and no change to the model:

- the batch is spread over ``replica``, ``data`` and ``expert``, and sequences over ``context``;
- parameters and all that lies beside them (moments, averages, gradients) are spread over ``data`` by their embed dim
  (FSDP, ZeRO-3), and over ``model`` by heads, feed-forward width and vocabulary (tensor parallel); experts are
  shared out over ``expert``; ``replica`` holds them again, so that slices meet once a step, for gradients;
- between layers, sequences are spread over ``model`` too, where tensor parallelism leaves it idle (sequence parallel);
- layers are spread over ``stage`` (`marin_train.pipeline`).

A step is traced with its mesh in the context (`in_context`). There, `constrain` pins an activation, and `over_mesh`
hands each device its own share of arrays, for code that would lose by the compiler's choices. Without a mesh in the
context both do nothing: the same model code runs on one device.

See: Xu et al. 2021, "GSPMD" (arXiv 2105.04663); Rajbhandari et al. 2020, "ZeRO" (arXiv 1910.02054); Shoeybi et al.
2019, "Megatron-LM" (arXiv 1909.08053); Korthikanti et al. 2022 (arXiv 2205.05198) for sequence parallelism.
"""

import dataclasses
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from marin_train.configs import MeshConfig, MoEConfig, TrainConfig
from marin_train.errors import ConfigError

AXES = ("stage", "replica", "data", "context", "expert", "model")
"""Outermost first: devices that are next to each other, and talk fastest, share the axes that talk most."""

RULES: dict[str, tuple[str, ...]] = {
    "batch": ("replica", "data", "expert"),
    "seq": ("context",),
    "residual": ("context", "model"),
    "embed": ("data",),
    "heads": ("model",),
    "kv_heads": ("model",),
    "mlp": ("model",),
    "vocab": ("model",),
    "expert": ("expert",),
    "expert_width": ("data",),
    "layer": ("stage",),
}
"""Mesh axes by dim. A dim that is not here is whole on every device."""

Dims = Sequence[str | None]


def make_mesh(config: MeshConfig, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh that `config` asks for, over the first devices that jax shows, or those that are given.

    Raises:
        ConfigError: it asks for more devices than there are, for shares that do not take all that are left, or for so
            few that a process of the run would have none.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(config, num_devices=len(devices))
    needed = math.prod(sizes.values())
    if needed > len(devices):
        raise ConfigError(f"{_asked(config)} needs {needed} devices, but {len(devices)} device(s) are there")
    idle = {device.process_index for device in devices} - {device.process_index for device in devices[:needed]}
    if idle:
        raise ConfigError(
            f"{_asked(config)} takes {needed} of {len(devices)} devices and leaves none to process {min(idle)}; start "
            f"fewer processes, or set an axis to -1, which takes all that are left"
        )
    return Mesh(_arranged(devices[:needed], sizes), AXES)


def one_device() -> Mesh:
    """A mesh of this process's first device."""
    return make_mesh(MeshConfig(data=1), devices=jax.local_devices()[:1])


def mesh_sizes(config: MeshConfig, *, num_devices: int) -> dict[str, int]:
    """Devices by axis; one that asks for all that are left gets at least one.

    Raises:
        ConfigError: some would be left over, though an axis asks for all.
    """
    sizes = {axis: getattr(config, axis) for axis in AXES}
    taken = math.prod(size for size in sizes.values() if size != -1)
    rest = num_devices % taken if num_devices > taken and -1 in sizes.values() else 0
    if rest:
        axis = next(axis for axis, size in sizes.items() if size == -1)
        raise ConfigError(
            f"{_asked(config)} leaves {rest} of {num_devices} devices idle; set "
            f"MeshConfig.{axis}={num_devices // taken} if that is meant, or choose axes whose product "
            f"divides {num_devices}"
        )
    return {axis: max(1, num_devices // taken) if size == -1 else size for axis, size in sizes.items()}


def _asked(config: MeshConfig) -> str:
    asked = ", ".join(f"{name}={size}" for name, size in dataclasses.asdict(config).items() if size != 1)
    return f"MeshConfig({asked})"


def _arranged(devices: Sequence[jax.Device], sizes: Mapping[str, int]) -> np.ndarray:
    """The devices in the mesh's shape: slices, between which links are slow, meet along the outermost axes alone, and
    the devices of a TPU slice as its torus links them."""
    shape = tuple(sizes.values())
    slices: dict[int, list[jax.Device]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
    groups = [slices[number] for number in sorted(slices)]
    outer = math.prod(shape[: AXES.index("data")])
    if devices[0].platform != "tpu" or outer % len(groups) or len({len(group) for group in groups}) > 1:
        return np.array([device for group in groups for device in group]).reshape(shape)
    within = (outer // len(groups), *shape[AXES.index("data") :])
    arranged = [mesh_utils.create_device_mesh(within, g, allow_split_physical_axes=True) for g in groups]
    return np.stack(arranged).reshape(shape)


def spec(dims: Dims, sizes: Mapping[str, int], *, shape: Sequence[int] | None = None) -> PartitionSpec:
    """The mesh axes of each dim; with a shape, those alone that share a dim out equally.

    A vector, such as a layer's gains, is whole on every device: gathering it would cost more than it takes.
    """
    return PartitionSpec(*(axes or None for axes in _axes(dims, sizes, shape)))


def _axes(dims: Dims, sizes: Mapping[str, int], shape: Sequence[int] | None) -> list[tuple[str, ...]]:
    axes = [tuple(axis for axis in RULES.get(dim or "", ()) if axis in sizes) for dim in dims]
    if shape is None:
        return axes
    if len([dim for dim in dims if dim != "layer"]) < 2:
        axes = [names if dim == "layer" else () for dim, names in zip(dims, axes, strict=True)]
    return [_dividing(names, sizes, size) for names, size in zip(axes, shape, strict=True)]


def _dividing(axes: tuple[str, ...], sizes: Mapping[str, int], size: int) -> tuple[str, ...]:
    while axes and size % math.prod(sizes[axis] for axis in axes):
        axes = axes[:-1]
    return axes


def sharding(mesh: Mesh | AbstractMesh, dims: Dims, *, shape: Sequence[int] | None = None) -> NamedSharding:
    """Where an array with these dims lies; with no dims, a scalar or an array that every device holds whole."""
    return NamedSharding(mesh, spec(dims, mesh.shape, shape=shape))


def shard_shape(dims: Dims, shape: Sequence[int], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of one device's share of a parameter, on a mesh of these sizes; no device is needed."""
    shares = [math.prod(sizes[axis] for axis in axes) for axes in _axes(dims, sizes, shape)]
    return tuple(size // number for size, number in zip(shape, shares, strict=True))


@contextmanager
def in_context(mesh: Mesh) -> Generator[None]:
    """Within it, code that is traced is traced for this mesh; on one device, for none."""
    if mesh.size == 1:
        yield
    else:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            yield


def constrain[A: jax.Array](x: A, *dims: str | None) -> A:
    """`x`, laid out by its dims' rules on the mesh in the context."""
    mesh = _context()
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, spec(dims, mesh.shape, shape=x.shape))


def constrain_residual[A: jax.Array](x: A) -> A:
    """A layer's result, laid out as what goes from layer to layer.

    In two steps: it is summed over ``model`` where it lies, and only then spread over it. In one, the compiler would
    first gather what is spread over ``context``.
    """
    return constrain(constrain(x, "batch", "seq", None), "batch", "residual", None)


def over_mesh(
    body: Callable[..., Any], *, inputs: Sequence[Dims | None], outputs: Any
) -> tuple[Callable[..., Any], dict[str, int]]:
    """A function of whole arrays that hands each device's shares to `body`, and the sizes of the mesh that it is for.

    Args:
        body: a function of as many arrays as there are ``inputs``.
        inputs: the dims of each array; None for an argument that is None.
        outputs: those of what it returns, in a tree of its structure whose leaves are tuples of dims.
    """
    sizes = axis_sizes()
    if _context() is None:
        return body, sizes

    def is_dims(node: Any) -> bool:
        return isinstance(node, tuple) and all(dim is None or isinstance(dim, str) for dim in node)

    in_specs = tuple(None if dims is None else spec(dims, sizes) for dims in inputs)
    out_specs = jax.tree.map(lambda dims: spec(dims, sizes), outputs, is_leaf=is_dims)
    mapped = jax.shard_map(body, in_specs=in_specs, out_specs=out_specs, axis_names=set(sizes), check_vma=False)
    return mapped, sizes


def axis_sizes() -> dict[str, int]:
    """Devices by axis of the mesh in the context; 1 of each without one."""
    mesh = _context()
    return dict.fromkeys(AXES, 1) if mesh is None else dict(mesh.shape)


def _context() -> AbstractMesh | None:
    """The mesh in the context, unless the code around has taken an axis of it in hand already, as a pipeline does.

    What is inside of that is left to the compiler, which cannot nest one such region in another.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.manual_axes else mesh


def check_run(config: TrainConfig, sizes: Mapping[str, int]) -> None:
    """Refuses a run whose arrays the mesh cannot share out equally.

    Args:
        config: the run.
        sizes: devices by axis.

    Raises:
        ConfigError: naming the field, the number of shares, and what would do.
    """
    model = config.model
    batch_sizes = (config.batch_size, *(stage.batch_size for stage in config.batch_stages))
    for size in batch_sizes:
        check_batch_size(sizes, size, num_parts=config.accumulation)
    shares: Iterable[tuple[str, int, str, int]] = (
        ("DataConfig.seq_len", config.data.seq_len, "context", sizes["context"]),
        ("ModelConfig.num_kv_heads", model.num_kv_heads, "model", sizes["model"]),
        ("ModelConfig.mlp_dim", model.mlp_dim, "model", sizes["model"]),
        *_shares_of_experts(model.moe, sizes),
    )
    for name, value, axis, number in shares:
        if value % number:
            raise ConfigError(f"{name}={value} must be a multiple of MeshConfig.{axis}={number}")
    if sizes["stage"] > 1 and sizes["context"] > 1:
        raise ConfigError(
            f"MeshConfig.stage={sizes['stage']} and context={sizes['context']} cannot be had together: a pipeline's "
            f"stages hold whole sequences"
        )
    if model.padded_vocab_size % sizes["model"]:
        raise ConfigError(
            f"ModelConfig.vocab_size={model.vocab_size} cannot be shared out over MeshConfig.model={sizes['model']}; "
            f"set ModelConfig.vocab_multiple to a multiple of that"
        )


def _shares_of_experts(moe: MoEConfig | None, sizes: Mapping[str, int]) -> Iterable[tuple[str, int, str, int]]:
    if moe is None:
        return ()
    widths = (("expert_dim", moe.expert_dim), ("shared_dim", moe.shared_dim))
    return (
        ("MoEConfig.num_experts", moe.num_experts, "expert", sizes["expert"]),
        *((f"MoEConfig.{name}", width, "model", sizes["model"]) for name, width in widths),
    )


def check_batch_size(sizes: Mapping[str, int], batch_size: int, *, num_parts: int = 1) -> None:
    """Refuses a batch that the mesh cannot share out equally, each of the parts that it is gone through in.

    Raises:
        ConfigError: naming the batch size and the number of shares.
    """
    num_shares = math.prod(sizes[axis] for axis in RULES["batch"])
    if batch_size % (num_shares * num_parts):
        parts = f" times TrainConfig.accumulation={num_parts}" if num_parts > 1 else ""
        raise ConfigError(
            f"TrainConfig.batch_size={batch_size} must be a multiple of the mesh's {num_shares} data shares{parts}"
        )
