"""What the subcommands of ``zephyr`` do; ``marin_zephyr.cli`` parses, dispatches and tells errors.

Each is a function whose signature is its options and whose docstring is its help, and returns the exit code.

- :mod:`~marin_zephyr.commands.datasets`: ``run``, ``explain``, ``doctor``
- :mod:`~marin_zephyr.commands.corpora`: ``normalize``, ``dedup``, ``quality``, ``decontaminate``
- :mod:`~marin_zephyr.commands.stores`: ``train-tokenizer``, ``tokenize``, ``inspect``
- :mod:`~marin_zephyr.commands.console`: what they share: types of arguments, and how a report is shown
"""
