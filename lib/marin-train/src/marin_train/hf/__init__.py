"""Hugging Face checkpoints: read into a model here, and written from one.

    from marin_train.hf import load_hf, save_hf

    read = load_hf("Qwen3-0.6B")                            # a directory, or any URL of one
    save_hf("exported", read.model, config=read.config, tokenizer=read.tokenizer, special_ids=read.special_ids)

A tensor's name and orientation there are in the parameter table (`marin_train.parameters`), so that `tensors` knows no
model; only the spelling of ``config.json`` has to be told, family by family, in `config_json`. What cannot be carried
over exactly, in either direction, is refused by name: a checkpoint that loads with other logits is worse than none.
"""

from marin_train.hf.directories import HfModel, export_hf, load_hf, save_hf

__all__ = ["HfModel", "export_hf", "load_hf", "save_hf"]
