"""What the subcommands of ``marin-train`` do; `marin_train.cli` parses, dispatches and tells errors.

Each is a function whose signature is its options and whose docstring is its help. What it needs of the library it
imports when it is called, so that ``--help`` costs no jax.

- `training`: run
- `evaluations`: eval, held-out, blame
- `outputs`: generate, export
- `plans`: describe, data
- `pages`: routing
- `console`: what they share
"""
