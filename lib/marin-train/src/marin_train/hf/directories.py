"""Whole Hugging Face directories: configuration, tensors and tokenizer, read at once and written at once.

A directory is written beside its final name and renamed when it is on the disk, so that a killed export leaves nothing
that looks whole. Remote directories are fetched to a temporary one before they are read.
"""

import dataclasses
import glob
import json
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from marin_train.configs import ModelConfig, MoEConfig
from marin_train.durability import flush, to_json
from marin_train.errors import HuggingFaceError
from marin_train.hf.config_json import from_model_config, to_model_config
from marin_train.hf.dialects import text_config
from marin_train.hf.expert_fields import TRAINED_BY
from marin_train.hf.tokenizer_files import TOKENIZER_FILES, with_companions

if TYPE_CHECKING:
    from jax.sharding import Mesh

SHARD_BYTES = 2 * 10**9


@dataclass(frozen=True, kw_only=True)
class HfModel:
    """A model that was read.

    Attributes:
        config: its shape.
        model: its parameters, float32.
        tokenizer: name -> content of `TOKENIZER_FILES`, those that were there.
        special_ids: ``bos`` and ``eos``; an id, several, or None.
    """

    config: ModelConfig
    model: Any
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    special_ids: Mapping[str, int | list[int] | None] = field(default_factory=dict)


def load_hf(
    path: str | Path, *, mesh: "Mesh | None" = None, vocab_multiple: int = 1, trained_by: MoEConfig | None = None
) -> HfModel:
    """Reads a model of a family that is known here (of one that sees, the text model alone), as float32.

    Args:
        path: the directory, or a URL of one that fsspec knows.
        mesh: the devices to spread the parameters over; by default all lie on the first.
        vocab_multiple: the model's `ModelConfig.vocab_multiple`: rows of zeros are added to embedding and head.
        trained_by: what is to train a model of experts: its rule of balance is the model's, and a bias that the
            directory has none of is 0. By default, experts are chosen by their scores alone.

    Raises:
        HuggingFaceError: the directory is damaged, or states a model that is not computed here, naming why.
    """
    with _local(path) as directory:
        return _load(directory, mesh=mesh, vocab_multiple=vocab_multiple, trained_by=trained_by)


def save_hf(
    path: str | Path,
    model: Any,
    *,
    config: ModelConfig,
    tokenizer: Mapping[str, bytes] | None = None,
    special_ids: Mapping[str, int | list[int] | None] | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> Path:
    """Writes a directory that transformers, and what reads its checkpoints, opens.

    Args:
        path: the directory, which is created.
        model: the parameters.
        config: their shape; a vocabulary's padding is left out.
        tokenizer: file name -> content. With ``tokenizer.json`` alone, the files beside it that transformers looks for
            are made.
        special_ids: ``bos`` and ``eos``; an id, several, or None.
        dtype: of the tensors; ``float32`` loses nothing.
        shard_bytes: a file's tensors have so many bytes at most; more are spread over several files.
        overwrite: replace a directory that is there, if it holds an exported model and nothing else.

    Returns:
        The directory.

    Raises:
        HuggingFaceError: the model cannot be expressed, naming why, or the directory is there and not empty.
    """
    import jax.numpy as jnp

    from marin_train import models
    from marin_train.checkpoints import named_leaves
    from marin_train.hf.tensors import write

    if dtype not in ("float32", "bfloat16") or shard_bytes < 1:
        raise HuggingFaceError(f"dtype={dtype!r}, shard_bytes={shard_bytes}: needs float32 or bfloat16, and above 0")
    special_ids = special_ids or {}
    values = from_model_config(config, dtype=dtype, special_ids=special_ids)
    table = models.family(config).parameter_table(config)
    leaves = named_leaves(model)
    wrong = [p.path for p in table if p.path not in leaves or leaves[p.path].shape != p.shape]
    if wrong or len(leaves) != len(table.parameters):
        raise HuggingFaceError(
            f"the model is not one of this configuration: {', '.join(wrong) or 'it has more leaves'}"
        )
    files = with_companions(tokenizer or {}, special_ids, max_seq_len=config.max_seq_len)
    files["config.json"] = to_json(values).encode()

    def fill(directory: Path) -> None:
        write(directory, leaves, table=table, dtype=jnp.dtype(dtype), shard_bytes=shard_bytes)
        for name, content in files.items():
            (directory / name).write_bytes(content)

    return _write_whole(path, fill, overwrite=overwrite)


def export_hf(
    checkpoint: str | Path,
    path: str | Path,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> Path:
    """Writes a checkpoint of a run as a Hugging Face directory.

    Args:
        checkpoint: a checkpoint's directory, or a run's, whose newest checkpoint is taken.
        path: see `save_hf`, as for the rest.
        dtype: of the tensors.
        shard_bytes: of a file's tensors, at most.
        overwrite: replace a directory that is there, if it holds an exported model and nothing else.

    Raises:
        CheckpointError: there is no whole checkpoint.
        HuggingFaceError: see `save_hf`.
    """
    from marin_train.checkpoints import load_model

    trained = load_model(checkpoint)
    return save_hf(
        path,
        trained.model,
        config=trained.config.model,
        tokenizer={"tokenizer.json": trained.tokenizer_file.read_bytes()},
        special_ids=trained.special_ids,
        dtype=dtype,
        shard_bytes=shard_bytes,
        overwrite=overwrite,
    )


def read_model_config(directory: str | Path) -> ModelConfig:
    """The shape that a Hugging Face directory on this machine states; its parameters are not looked at.

    Raises:
        HuggingFaceError: ``config.json`` is damaged, or states a model that is not computed here, naming why.
    """
    file = Path(directory) / "config.json"
    return to_model_config(_read_fields(file), where=str(file))


def _read_fields(file: Path) -> dict[str, Any]:
    try:
        written = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise HuggingFaceError(f"{file} cannot be read: {error}") from None
    if not isinstance(written, dict):
        raise HuggingFaceError(f"{file} holds {type(written).__name__}, expected the fields of a model")
    return written


def _load(directory: Path, *, mesh: "Mesh | None", vocab_multiple: int, trained_by: MoEConfig | None) -> HfModel:
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from marin_train import models
    from marin_train.hf.tensors import TensorFiles, shapes
    from marin_train.mesh import sharding
    from marin_train.moe.layer import ROUTER_BIAS
    from marin_train.parameters import build

    written = _read_fields(directory / "config.json")
    config = dataclasses.replace(read_model_config(directory), vocab_multiple=vocab_multiple)
    if config.moe is not None and trained_by is not None:
        chosen = {name: getattr(trained_by, name) for name in TRAINED_BY}
        config = dataclasses.replace(config, moe=dataclasses.replace(config.moe, **chosen))
    family = models.family(config)
    table = family.parameter_table(config)
    first = SingleDeviceSharding(jax.devices()[0])
    files = TensorFiles(directory, rename=_text_name if written["model_type"] == "gemma3" else _current_name)
    # A head that is tied may be written as well.
    ignored = ("lm_head.weight",) if config.tie_embeddings else ()
    absent = {p.path for p in table if p.path.endswith(ROUTER_BIAS) and not files.has(p)}
    files.check(shapes([p for p in table if p.path not in absent]), ignored=ignored)
    if ignored and not files.equal("model.embed_tokens.weight", *ignored):
        raise HuggingFaceError(f"{directory}: tie_word_embeddings=True, but lm_head.weight is not the embedding")
    leaves = {}
    for p in table:
        place = first if mesh is None else sharding(mesh, p.dims, shape=p.shape)
        leaves[p.path] = jax.device_put(jnp.zeros(p.shape), place) if p.path in absent else files.read(p, place)
    text = text_config(written)
    return HfModel(
        config=config,
        model=build(family.Model, leaves),
        tokenizer={name: (directory / name).read_bytes() for name in TOKENIZER_FILES if (directory / name).is_file()},
        special_ids={name: text.get(f"{name}_token_id") for name in ("bos", "eos")},
    )


def _current_name(name: str) -> str | None:
    """A tensor's name; None for the table of frequencies that old files hold."""
    return None if name.endswith("rotary_emb.inv_freq") else name


def _text_name(name: str) -> str | None:
    """A tensor's name in the text model, from that in one that sees, by either layout; None for what sees."""
    if name.startswith("language_model."):
        return name.removeprefix("language_model.")
    if name.startswith("model.language_model."):
        return name.replace("model.language_model.", "model.", 1)
    return name if name == "lm_head.weight" else None


def _write_whole(path: str | Path, fill: Callable[[Path], None], *, overwrite: bool) -> Path:
    """A directory that `fill` filled, under its name only when all of it is on the disk."""
    if "://" in str(path):
        raise HuggingFaceError(f"{path}: write to a directory of this machine, and copy it there")
    final = Path(path)
    leftover = f".{final.name}.writing-"
    if not overwrite and final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise HuggingFaceError(f"{final} is there already; choose another directory, or overwrite it")
    there = final.iterdir() if final.is_dir() else [final] if final.exists() else []
    if foreign := sorted(file.name for file in there if not _is_exported(file)):
        raise HuggingFaceError(
            f"{final} is not overwritten: {foreign[0]} is there, which no export writes; remove it, or choose another "
            f"directory"
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    for old in final.parent.glob(f"{glob.escape(leftover)}*"):
        shutil.rmtree(old, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=leftover, dir=final.parent))
    try:
        whole = temporary / "new"
        whole.mkdir()
        fill(whole)
        for file in (*whole.iterdir(), whole):
            flush(file)
        if final.exists():
            final.rename(temporary / "old")
        whole.rename(final)
        flush(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def _is_exported(file: Path) -> bool:
    """Whether it has a name that an export gives; all else is somebody's, and not to be lost."""
    known = ("config.json", "model.safetensors.index.json", *TOKENIZER_FILES)
    return file.is_file() and (file.name in known or file.suffix == ".safetensors")


@contextmanager
def _local(path: str | Path) -> Generator[Path]:
    """The directory on this machine: itself, or a temporary one that a remote one was fetched to."""
    protocol, separator, rest = str(path).partition("://")
    if not separator or protocol in ("file", "local"):
        directory = Path(rest if separator else path)
        if not directory.is_dir():
            raise HuggingFaceError(f"{directory} is not a directory; give one with config.json and safetensors files")
        yield directory
        return
    import fsspec

    with tempfile.TemporaryDirectory(prefix="marin-hf-") as fetched:
        try:
            filesystem, root = fsspec.core.url_to_fs(str(path))
            names = [Path(entry["name"]).name for entry in filesystem.ls(root, detail=True) if entry["type"] == "file"]
            for name in names:
                if name.endswith((".safetensors", ".json", ".txt", ".jinja", ".model")):
                    filesystem.get_file(f"{root.rstrip('/')}/{name}", f"{fetched}/{name}")
        except Exception as error:  # every protocol has its own
            raise HuggingFaceError(f"{path} cannot be read: {error or type(error).__name__}") from None
        yield Path(fetched)
