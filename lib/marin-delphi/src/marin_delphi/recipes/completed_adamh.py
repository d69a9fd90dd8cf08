"""Completed AdamH: the recipe of Marin's Delphi suite, from 3e18 to 1e23 FLOPs.

One dial, the compute budget, sets everything. Width runs over a grid, depth follows width, tokens follow from what
the budget leaves, the batch from the tokens, and the optimiser from batch and tokens by power laws anchored at one
tuned run (a 130M-parameter Qwen3 on 2.5e9 tokens). AdamH keeps the norm of each matrix fixed, so that its learning
rate is an angle a step and needs no weight decay; embeddings, norms and biases are trained by Adam.

Invariant: the defaults are the published coefficients. A fork changes fields, hence its digest, and nothing else.

See: Delphi, https://openathena.ai/blog/delphi; hyperball optimisers, arXiv 2606.16899; the transfer rules lean on
CompleteP, Dey et al. 2025 (arXiv 2505.01618).
"""

import dataclasses
import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, field

from marin_delphi.architecture import Architecture, flops_per_token, num_params
from marin_delphi.errors import BudgetError, RecipeError
from marin_delphi.ladder import Candidate, check_budget, select


@dataclass(frozen=True, kw_only=True)
class AdamHHyperparameters:
    """Optimiser settings of one run; rates are peaks of the schedule.

    Attributes:
        learning_rate: AdamH, hidden matrices and head: radians a step, nearly.
        adam_learning_rate: Adam, for embeddings, norms and biases.
        beta1: first-moment decay of both.
        beta2: second-moment decay of both.
        eps: Adam's epsilon of both.
    """

    learning_rate: float
    adam_learning_rate: float
    beta1: float
    beta2: float
    eps: float


@dataclass(frozen=True, kw_only=True)
class CompletedAdamHParams:
    """The Delphi recipe; fork it with ``dataclasses.replace(recipe, mlp_ratio=3)``.

    Letters of the formulas below: ``H`` hidden width, ``L`` layers, ``l`` sequence length, ``V`` vocabulary, ``N``
    parameters (recipe convention), ``B`` batch in sequences, ``T`` tokens, ``C`` budget, ``f`` forward FLOPs a token.
    """

    name: str = "completed-adamh"
    source: str = field(default="https://openathena.ai/blog/delphi", compare=False)
    """Where the coefficients were read; a fork says its own. Enters neither equality nor the digest."""

    # Anchor: the tuned run that every power law starts from.
    anchor_batch_size: int = 64
    """B0, sequences."""
    anchor_tokens: float = 2.5e9
    """T0."""
    learning_rate: float = 0.0063
    adam_learning_rate: float = 6.56e-4
    eps: float = 1.85e-8
    beta1: float = 0.9
    beta2: float = 0.9999
    learning_rate_token_exponent: float = 0.3

    # Bounds within which a batch is acceptable.
    learning_rate_max: float = 0.01
    """For both rates."""
    beta2_min: float = 0.9
    beta2_max: float = 0.9999
    batch_size_min: int = 8
    batch_size_max: int = 8192
    steps_aim: int = 2**16
    """The first batch tried is the smallest power of two that needs no more steps than this."""

    # The same for every run.
    clip_norm: float = 0.1
    z_loss: float = 1e-7
    weight_decay: float = 0.0
    warmup: float = 0.1
    """Fraction of steps, linear from zero."""
    decay: float = 0.2
    """Fraction of steps, linear to ``final_ratio`` of the peak; in between the rate is flat (WSD)."""
    final_ratio: float = 0.0

    # Shape: Qwen3 blocks, sized by the width alone.
    vocab_size: int = 128_256
    """Llama 3 tokenizer."""
    seq_len: int = 4096
    head_dim: int = 128
    mlp_ratio: float = 4.0
    depth_base: float = 64.0
    depth_slope: float = 4.0
    depth_offset: float = 9.0
    rope_theta: float = 500_000.0
    rope_scaling: str = "llama3"
    param_dtype: str = "float32"
    compute_dtype: str = "bfloat16"

    # Grid of widths, and the caps on what it gives.
    hidden_dim_min: int = 512
    hidden_dim_step: int = 128
    hidden_dim_step_large: int = 256
    """The step above ``large_budget``."""
    large_budget: float = 2e19
    num_params_max: float = 12e9
    """Up to ``num_params_max_budget``; above it the cap grows as the square root of the budget."""
    num_params_max_budget: float = 3e20
    num_params_limit: float = 1e12
    """No model exceeds this at any budget."""
    tokens_per_param_max: float = 250.0

    def __post_init__(self) -> None:
        free = {"weight_decay", "z_loss", "warmup", "decay", "final_ratio", "depth_slope", "depth_offset"}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.type not in (int, float):
                continue
            if not math.isfinite(value) or value < 0 or (value == 0 and f.name not in free):
                bound = "finite and not negative" if f.name in free else "finite and positive"
                raise RecipeError(f"{type(self).__name__}.{f.name}={value} must be {bound}")
            if f.type is int and value != int(value):
                raise RecipeError(f"{type(self).__name__}.{f.name}={value} must be a whole number")
            if f.name.startswith("beta") and value >= 1:
                raise RecipeError(f"{type(self).__name__}.{f.name}={value} must be below 1: it is a decay a step")
        if self.warmup + self.decay > 1:
            raise RecipeError(f"warmup={self.warmup} and decay={self.decay} are fractions whose sum is at most 1")
        for name in ("hidden_dim_min", "hidden_dim_step", "hidden_dim_step_large"):
            if (width := getattr(self, name)) % self.head_dim:
                raise RecipeError(f"{name}={width} must be a multiple of head_dim={self.head_dim}: whole heads")

    def digest(self) -> str:
        """Identity of the recipe: sha256 hex over its class and every coefficient, equal exactly when recipes are."""
        values = {
            f.name: float(v) if f.type is float else v
            for f in dataclasses.fields(self)
            if f.compare
            for v in (getattr(self, f.name),)
        }
        text = json.dumps({"recipe": type(self).__name__, **values}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def num_layers(self, hidden_dim: int) -> int:
        """Depth for a width: ``L = round(H / (64 + 4 log2(H) - 9))``. See: `CompletedAdamHParams`."""
        width_per_layer = self.depth_base + self.depth_slope * math.log2(hidden_dim) - self.depth_offset
        if width_per_layer <= 0:
            raise RecipeError(
                f"depth_base={self.depth_base}, depth_slope={self.depth_slope} and depth_offset={self.depth_offset} "
                f"give {width_per_layer:.3g} units of width a layer at hidden_dim={hidden_dim}; it must be positive"
            )
        return max(1, round(hidden_dim / width_per_layer))

    def architecture(self, hidden_dim: int) -> Architecture:
        """The shape at a width: ``H / 128`` heads of 128, as many key heads, MLP of ``4 H``, depth by `num_layers`.

        Args:
            hidden_dim: width, a multiple of ``head_dim``.

        Raises:
            RecipeError: the width is not whole heads.

        See: Qwen3 technical report (arXiv 2505.09388) for the block; Delphi for the proportions.
        """
        if hidden_dim < self.head_dim or hidden_dim % self.head_dim:
            raise RecipeError(f"hidden_dim={hidden_dim} must be a positive multiple of head_dim={self.head_dim}")
        num_heads = hidden_dim // self.head_dim
        return Architecture(
            vocab_size=self.vocab_size,
            hidden_dim=hidden_dim,
            num_layers=self.num_layers(hidden_dim),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=self.head_dim,
            mlp_dim=round(self.mlp_ratio * hidden_dim),
        )

    def init_std(self, fan_in: int) -> float:
        """Standard deviation of a projection's initial weights: ``1 / sqrt(d_in)``."""
        return 1 / math.sqrt(fan_in)

    def embedding_init_std(self, hidden_dim: int) -> float:
        """Standard deviation of the token embedding's initial weights: ``1 / H``."""
        return 1 / hidden_dim

    def hyperparameters(self, *, batch_size: int, tokens: float) -> AdamHHyperparameters:
        """Optimiser settings for a batch size and a token count::

            learning_rate      = 0.0063  sqrt(B / B0) (T0 / T)^0.3           at most 0.01
            adam_learning_rate = 6.56e-4 sqrt(B T0 / (B0 T))                 at most 0.01
            eps                = 1.85e-8 sqrt(B0 T / (B T0))
            beta2              = clip(0.9999^(B / B0), 0.9, 0.9999)          a constant half-life in tokens

        Args:
            batch_size: sequences a step.
            tokens: tokens of the run, before rounding to whole steps.

        See: Delphi; the square-root rules are Malladi et al. 2022 (arXiv 2205.10287).
        """
        batch = batch_size / self.anchor_batch_size
        length = tokens / self.anchor_tokens
        rate = self.learning_rate * math.sqrt(batch) * length**-self.learning_rate_token_exponent
        adam_rate = self.adam_learning_rate * math.sqrt(batch / length)
        return AdamHHyperparameters(
            learning_rate=min(rate, self.learning_rate_max),
            adam_learning_rate=min(adam_rate, self.learning_rate_max),
            beta1=self.beta1,
            beta2=min(max(self.beta2**batch, self.beta2_min), self.beta2_max),
            eps=self.eps * math.sqrt(length / batch),
        )

    def batch_size(self, tokens: float) -> int:
        """Sequences a step: the next power of two at or above ``T / (2^16 l)``, halved while it is above 8 and a rate
        reaches 0.01 or beta2 falls to 0.9.

        The result may lie outside ``[batch_size_min, batch_size_max]``; `candidates` then drops the shape.
        """
        exact = tokens / (self.steps_aim * self.seq_len)
        batch = 2 ** max(0, math.ceil(math.log2(exact)))
        while batch > self.batch_size_min:
            chosen = self.hyperparameters(batch_size=batch, tokens=tokens)
            rate = max(chosen.learning_rate, chosen.adam_learning_rate)
            if rate < self.learning_rate_max and chosen.beta2 > self.beta2_min:
                break
            batch //= 2
        return batch

    def num_params_cap(self, budget: float) -> float:
        """Largest model at a budget: ``min(max(12e9, 12e9 sqrt(C / 3e20)), 1e12)`` parameters."""
        growth = math.sqrt(max(1.0, budget / self.num_params_max_budget))
        return min(self.num_params_max * growth, self.num_params_limit)

    def candidates(self, budget: float) -> tuple[Candidate, ...]:
        """Every configuration at a budget, from narrow to wide.

        Widths run from 512 in steps of 128, or 256 above 2e19 FLOPs. A width is dropped if the model exceeds
        `num_params_cap`, if its tokens ``T = C / (3 f)`` exceed 250 a parameter, or if its `batch_size` leaves
        [8, 8192]. Then ``steps = round(T / (B l))`` and ``tokens = steps B l``.

        Args:
            budget: training FLOPs, full attention map.

        Raises:
            BudgetError: the budget is not a positive number, or no width survives; the message says what dropped them.
        """
        budget = check_budget(budget)
        step = self.hidden_dim_step if budget <= self.large_budget else self.hidden_dim_step_large
        cap = self.num_params_cap(budget)
        kept: list[Candidate] = []
        dropped: Counter[str] = Counter()
        hidden_dim = self.hidden_dim_min
        while num_params(shape := self.architecture(hidden_dim), convention="recipe") <= cap:
            found = self._candidate(budget, shape)
            if isinstance(found, Candidate):
                kept.append(found)
            else:
                dropped[found] += 1
            hidden_dim += step
        if not kept:
            why = ", ".join(f"{count} for {reason}" for reason, count in dropped.items()) or "all for parameters"
            raise BudgetError(
                f"budget={budget:g} has no {self.name} configuration; widths dropped: {why}. "
                "Change the budget, or fork the recipe with other bounds"
            )
        return tuple(kept)

    def select(self, budget: float, *, tokens_min: float) -> Candidate:
        """The candidate at ``budget`` with the fewest tokens >= ``tokens_min``. See: `marin_delphi.ladder.select`."""
        return select(self.candidates(budget), tokens_min=tokens_min)

    def _candidate(self, budget: float, shape: Architecture) -> Candidate | str:
        """The candidate of one shape, or the reason why it is dropped."""
        tokens = budget / flops_per_token(shape, seq_len=self.seq_len)
        if tokens / num_params(shape, convention="recipe") > self.tokens_per_param_max:
            return f"over {self.tokens_per_param_max:g} tokens a parameter"
        batch = self.batch_size(tokens)
        if batch < self.batch_size_min:
            return f"a batch under {self.batch_size_min}"
        if batch > self.batch_size_max:
            return f"a batch over {self.batch_size_max}"
        steps = round(tokens / (batch * self.seq_len))
        if steps < 1:
            return "less than one step"
        return Candidate(
            recipe=self,
            budget=budget,
            architecture=shape,
            batch_size=batch,
            steps=steps,
            tokens=steps * batch * self.seq_len,
        )
