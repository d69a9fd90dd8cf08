"""The exception tree of marin-train; every error is a user's to read: it names the field, the value and the fix.

MarinTrainError
├── ConfigError          a configuration that cannot be run (exit 2)
│   ├── ExhaustedError   more data are asked for than epoch limits leave (exit 2)
│   └── MissingExtraError  an extra of the wheel is not installed (exit 2)
├── ParameterError       a model and its parameter table disagree (a programming error)
├── TokenStoreError      a token store that is absent, damaged, or of another tokenizer (exit 2)
├── HuggingFaceError     a Hugging Face checkpoint that cannot be read, or written, exactly (exit 2)
├── CheckpointError      a checkpoint that is absent, damaged, or of another run (exit 3)
│   └── DamagedError     it alone is damaged; an older one of its run serves as well (exit 3)
├── DivergedError        loss or gradient is no longer finite (exit 1)
├── LostProcessError     another process of the run is gone; started together, they go on (exit 1)
└── InterruptedRunError  a signal asked the run to stop; the same call goes on (exit 1)
"""


class MarinTrainError(Exception):
    """Base of every error that marin-train raises on purpose."""

    exit_code = 1


class ConfigError(MarinTrainError, ValueError):
    """A configuration that cannot be run."""

    exit_code = 2


class ExhaustedError(ConfigError, IndexError):
    """A step for which the epoch limits of a mixture's components leave no data."""


class MissingExtraError(ConfigError):
    """An extra of the wheel is not installed; the message holds the exact install line."""


class ParameterError(MarinTrainError):
    """A model and its parameter table disagree: a leaf is undeclared, declared twice, or missing."""


class TokenStoreError(MarinTrainError):
    """A token store that is absent, damaged, or written with another tokenizer."""

    exit_code = 2


class HuggingFaceError(MarinTrainError, ValueError):
    """A Hugging Face checkpoint that is damaged, or would not compute here what it does there, or the reverse."""

    exit_code = 2


class CheckpointError(MarinTrainError):
    """A checkpoint that is absent, damaged, or belongs to another run."""

    exit_code = 3


class DamagedError(CheckpointError):
    """This checkpoint cannot be used; the reason is the message."""


class DivergedError(MarinTrainError):
    """Loss or gradient is no longer a finite number; no state after it is saved."""


class LostProcessError(MarinTrainError):
    """Another process of the run is gone, and no step can be done without it."""


class InterruptedRunError(MarinTrainError):
    """A signal asked the run to stop; its state is saved, and the same call goes on from there."""
