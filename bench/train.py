"""Training steps of ours and of other trainers: one shape, one stream of text, interleaved rounds.

    uv run bench/train.py                                  4 layers of width 256 (7.6M parameters), 200 steps each
    uv run bench/train.py --quick                          30 steps
    uv run bench/train.py --shape 30M                      8 layers of width 512
    uv run bench/train.py --depths 4 32                    what starting and compiling take, by number of layers
    MARIN_BENCH_PEERS=~/peers uv run bench/train.py        beside Levanter (in m312/) and PyTorch (in hf/)

Environments: `uv venv -p 3.12 m312`, `uv pip install -p m312/bin/python --prerelease=allow marin-levanter`; and
`python3.11 -m venv hf`, `hf/bin/pip install torch==2.13.0 numpy`.

Every trainer is a process that lives through all rounds (`flows/training.py`); "plain" is the fp32 step that one writes
in an afternoon. Rows: median and range of a step, CPU seconds a step, its ratio to ours as chosen, the loss over the
last tenth; then what starting took, from the command to the end of the first step, and memory.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.children import Child, peers_directory
from flows.training import Shape, write_tokens

SHAPES = {
    "7M": Shape(),
    "30M": Shape(hidden=512, layers=8, heads=8, mlp=1408),
    "tiny": Shape(hidden=64, layers=2, heads=1, mlp=128, vocab=512, seq_len=128, batch=2),
}
FP32 = "float32-blocked-full-scan"
OURS = "ours, as chosen"


@dataclass
class Trainer:
    """A process, and what it has said."""

    child: Child
    hello: dict[str, Any]
    start: float
    steps: list[dict[str, float]] = field(default_factory=list)
    memory_mb: float = 0.0

    def take(self, num_steps: int) -> None:
        """Has it take steps."""
        said = self.child.ask(num_steps)
        self.steps += said["steps"]
        self.memory_mb = said["memory_mb"]


def commands(shape: Shape, scratch: Path) -> dict[str, list[str]]:
    """Of every trainer whose environment is there: what starts it."""
    where = peers_directory()
    common, weights = [str(shape), str(scratch / "tokens.npy")], str(scratch / f"weights-{shape.layers}.npz")
    found = {
        OURS: [sys.executable, "training_ours.py", *common, weights, "auto"],
        "ours, fp32": [sys.executable, "training_ours.py", *common, weights, FP32],
        "plain JAX, fp32": [sys.executable, "training_plain.py", *common, weights],
        "Levanter, fp32": [f"{where}/m312/bin/python", "training_levanter.py", *common, str(scratch / "levanter")],
        "PyTorch, fp32": [f"{where}/hf/bin/python", "training_torch.py", *common, weights, "float32"],
        "PyTorch, bf16 autocast": [f"{where}/hf/bin/python", "training_torch.py", *common, weights, "bfloat16"],
    }
    return {name: command for name, command in found.items() if Path(command[0]).exists()}


def launch(command: list[str], scratch: Path) -> Trainer:
    """Starts a trainer and waits for its first step, alone on the machine."""
    begun = time.perf_counter()
    # No choice of an earlier measurement is at hand.
    child = Child.start(command, cwd=scratch, env={"MARIN_CACHE": str(scratch / "cache")})
    hello = child.listen()
    return Trainer(child, hello, time.perf_counter() - begun)


def stop(trainers: dict[str, Trainer]) -> None:
    """Ends them."""
    for trainer in trainers.values():
        trainer.child.close()
    for trainer in trainers.values():
        trainer.child.wait()


def show(trainers: dict[str, Trainer]) -> None:
    """The tables."""
    ours = statistics.median(s["seconds"] for s in trainers[OURS].steps)
    print(f"{'a step':<26}{'median ms':>10}{'min':>8}{'max':>8}{'CPU ms':>8}{'x ours':>8}{'loss':>9}")
    for name, trainer in trainers.items():
        seconds = [1e3 * s["seconds"] for s in trainer.steps]
        cpu = 1e3 * statistics.median(s["cpu"] for s in trainer.steps)
        last = trainer.steps[-max(1, len(seconds) // 10) :]
        loss = statistics.fmean(s["loss"] for s in last)
        middle = statistics.median(seconds)
        numbers = f"{middle:>10.0f}{min(seconds):>8.0f}{max(seconds):>8.0f}{cpu:>8.0f}{middle / 1e3 / ours:>8.2f}"
        print(f"{name:<26}{numbers}{loss:>9.4f}")
    print(f"{'a start, s':<26}{'whole':>10}{'imports':>8}{'choice':>8}{'compile':>8}{'':>8}{'peak MB':>9}")
    for name, trainer in trainers.items():
        hello = trainer.hello
        # Where compiling was not told apart, the first step is all but that.
        compiled = hello.get("compile", hello["first_step"])
        numbers = f"{trainer.start:>10.1f}{hello['imports']:>8.1f}{hello.get('choice', 0.0):>8.1f}{compiled:>8.1f}"
        print(f"{name:<26}{numbers}{'':>8}{trainer.memory_mb:>9.0f}")
    for name in (OURS, "ours, fp32"):
        hello = trainers[name].hello
        held, sums = hello["step_mb"], hello["analytic_mb"]
        print(f"{name}: {hello['policy']}; its step holds {held:.0f} MB, {held / sums:.2f} of the sum of its arrays")


def show_depths(shape: Shape, depths: list[int], scratch: Path) -> None:
    """What starting takes, by number of layers."""
    print(f"{'layers':<26}{'layers':>8}{'start s':>9}{'compile s':>11}")
    for depth in depths:
        for name, command in commands(replace(shape, layers=depth), scratch).items():
            trainer = launch(command, scratch)
            stop({name: trainer})
            compiled = trainer.hello.get("compile", trainer.hello["first_step"])
            print(f"{name:<26}{depth:>8}{trainer.start:>9.1f}{compiled:>11.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="7M")
    parser.add_argument("--steps", type=int, help="default: 200, or 30 if quick")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="30 steps")
    parser.add_argument("--depths", type=int, nargs="+", metavar="LAYERS", help="start and compile times alone")
    options = parser.parse_args()
    shape, steps = SHAPES[options.shape], options.steps or (30 if options.quick else 200)
    with tempfile.TemporaryDirectory(prefix="marin-bench-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        write_tokens(shape, scratch / "tokens.npy")
        if options.depths:
            show_depths(shape, options.depths, scratch)
            return
        trainers: dict[str, Trainer] = {}
        try:
            for name, command in commands(shape, scratch).items():
                trainers[name] = launch(command, scratch)
            for k in range(options.rounds):
                print(f"\rround {k + 1} of {options.rounds}", end="", file=sys.stderr, flush=True)
                for trainer in trainers.values():
                    trainer.take(max(1, steps // options.rounds))
            print("\r" + " " * 24, end="\r", file=sys.stderr)
        finally:
            stop(trainers)
    show(trainers)


if __name__ == "__main__":
    main()
