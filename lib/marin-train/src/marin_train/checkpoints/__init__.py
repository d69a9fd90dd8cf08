"""Checkpoints: a directory that is whole or does not exist, with a certificate of the run it continues.

    step-00000120/
      model/  optimizer/  (ema/)                 Orbax, one global array a leaf, by the leaf's path
      config.json  policy.json  tokenizer.json   so that the directory alone can be evaluated and sampled
      certificate.json                           written last

Invariants kept here:

- *Atomic.* Everything is written under a temporary name, flushed to disk, and renamed. A checkpoint whose certificate
  (`marin_train.certificates`) does not hold is passed over, with a warning, for the one before it.
- *The same run.* A resume that would not continue exactly the run that was saved is refused.
- *One writer.* Each start claims the directory; a process that lost the claim may not commit.
- *Never two states.* Arrays are read into their places on the target's mesh, whatever mesh they were saved from.

A file an idea: `cadence` (after which steps), `snapshots` (the step is blocked only while the state is copied),
`writing`, `reading`, `arrays` (all of Orbax), `memory` (what a restore frees goes back), `retention` (what lies in a
directory, and what may be removed).
"""

from marin_train.checkpoints.arrays import named_leaves
from marin_train.checkpoints.cadence import Cadence
from marin_train.checkpoints.reading import TrainedModel, find, load_model, load_parameters, read_config, restore_latest
from marin_train.checkpoints.retention import checkpoints
from marin_train.checkpoints.writing import CheckpointWriter

__all__ = [
    "Cadence",
    "CheckpointWriter",
    "TrainedModel",
    "checkpoints",
    "find",
    "load_model",
    "load_parameters",
    "named_leaves",
    "read_config",
    "restore_latest",
]
