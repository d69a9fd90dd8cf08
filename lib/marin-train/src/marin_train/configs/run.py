"""A whole run: model, data, optimization, the machine's mesh, and cadences."""

from dataclasses import dataclass, field

from marin_train.configs.checks import COUNTED_ON_DEVICE, fraction, not_negative, positive
from marin_train.configs.data import DataConfig
from marin_train.configs.model import ModelConfig
from marin_train.configs.optimization import GuardConfig, OptimizerConfig, ScheduleConfig
from marin_train.errors import ConfigError
from marin_train.policy import by_name


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices by axis, outermost first; an axis of -1 takes those that the others leave. The result does not depend on
    it, beyond rounding.
    """

    stage: int = 1
    """Pipeline stages, each with its share of the layers."""
    replica: int = 1
    """Slices that hold the same shards, and meet once a step."""
    data: int = -1
    """Shares of the batch; parameters and optimizer state are sharded over it (FSDP, ZeRO-3)."""
    context: int = 1
    """Shares of each sequence; keys and values go round in a ring."""
    expert: int = 1
    """Shares of the experts of a mixture of experts; the batch is spread over it too."""
    model: int = 1
    """Shares of heads, feed-forward width and vocabulary (tensor parallel); of the sequence between them."""

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("stage", "replica", "data", "context", "expert", "model")}
        for name, size in sizes.items():
            if size != -1 and not 1 <= size <= 2**31:
                raise ConfigError(f"MeshConfig.{name}={size} must be at least 1, or -1 for all devices that are left")
        if (free := [name for name, size in sizes.items() if size == -1]) and len(free) > 1:
            raise ConfigError(f"MeshConfig.{free[0]} and {free[1]} are both -1; one axis can take what is left")


@dataclass(frozen=True, kw_only=True)
class BatchStage:
    """From step ``start`` on (steps are counted from 0), ``batch_size`` sequences a step."""

    start: int
    """The first step of that size."""
    batch_size: int
    """Sequences a step, over all devices."""

    def __post_init__(self) -> None:
        positive(self, "start", bits=COUNTED_ON_DEVICE)
        positive(self, "batch_size", bits=COUNTED_ON_DEVICE)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a run's result, and its cadence (which does not)."""

    model: ModelConfig
    """The shape of the model."""
    data: DataConfig
    """What it is trained on."""
    steps: int
    """Batches gone through, and updates done but for those that ``guard`` refuses."""
    batch_size: int
    """Sequences a step, over all devices."""
    batch_stages: tuple[BatchStage, ...] = ()
    """Other batch sizes from later steps on; the data go on where they were."""
    accumulation: int = 1
    """Parts that a batch is gone through in, one after the other, to hold fewer activations; the loss is the same."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The rule of the updates."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Its learning rate over the run."""
    guard: GuardConfig = field(default_factory=GuardConfig)
    """What becomes of bad steps."""
    ema_decay: float | None = None
    """Keeps an exponential moving average of the parameters, which is what is evaluated and exported."""
    mesh: MeshConfig = field(default_factory=MeshConfig)
    """How model and batch are spread over devices."""
    seed: int = 0
    """Of the initial parameters; `DataConfig.seed` is that of the data's order."""
    z_loss: float = 0.0
    """Weight of the squared log of the softmax's normaliser, beside the cross-entropy."""
    policy: str = "auto"
    """``auto`` measures the machine once and records what it chose; or a policy's name, to pin it."""
    checkpoint_seconds: float = 300.0
    """A temporary checkpoint, of which the last two stay, every so many seconds, which is what a crash may cost."""
    checkpoint_steps: int = 0
    """A permanent checkpoint every so many steps; 0 keeps only the last ones and the final one."""
    eval_steps: int = 0
    """Held-out components are scored every so many steps, and after the last; 0 never does."""
    watch_steps: int = 0
    """Norms of every leaf, its gradient and its update are told every so many steps; 0 never."""
    log_every: int = 10
    """A line is logged every so many steps; ``metrics.jsonl`` has a row of each."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulation", "log_every"):
            positive(self, name, bits=COUNTED_ON_DEVICE)
        if self.schedule.cycles > self.steps:
            raise ConfigError(
                f"ScheduleConfig.cycles={self.schedule.cycles} exceeds TrainConfig.steps={self.steps}; a cycle has at "
                f"least one"
            )
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"TrainConfig.seed={self.seed} must lie between 0 and 2**32 - 1")
        if self.policy != "auto":
            by_name(self.policy)
        for name in ("z_loss", "checkpoint_seconds", "checkpoint_steps", "eval_steps", "watch_steps"):
            not_negative(self, name)
        if self.ema_decay is not None:
            fraction(self, "ema_decay")
        if self.data.seq_len > self.model.max_seq_len:
            raise ConfigError(
                f"DataConfig.seq_len={self.data.seq_len} exceeds ModelConfig.max_seq_len={self.model.max_seq_len}"
            )
        sizes = [self.batch_size, *(stage.batch_size for stage in self.batch_stages)]
        for size in sizes:
            if size % self.accumulation:
                raise ConfigError(f"TrainConfig.accumulation={self.accumulation} must divide batch_size={size}")
        for before, stage in zip(self.batch_stages, self.batch_stages[1:], strict=False):
            if stage.start <= before.start:
                raise ConfigError(
                    f"TrainConfig.batch_stages: start={stage.start} follows start={before.start}; each begins after "
                    f"the one before it"
                )
