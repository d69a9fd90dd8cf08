import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from marin_train import cli
from marin_train.configs import TrainConfig, to_dict


class Outcome:
    """What a command left: exit code, standard output and standard error."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> Outcome:
        code = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 0
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def config_file(tmp_path: Path, tiny_config: Callable[..., TrainConfig]) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(to_dict(tiny_config())))
    return path


def test_run_trains_and_says_where_the_result_lies(
    command: Command, config_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    done = command("run", config_file, "--set", "log_every=5", "--set", "checkpoint_steps=9", "--out", out)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == str(out / "checkpoints" / "step-00000012")
    assert (out / "checkpoints" / "step-00000009").is_dir()
    progress = [message.split("  ")[0] for message in caplog.messages if message.startswith("step ")]
    assert progress == ["step 5/12", "step 10/12", "step 12/12"]


def test_run_json_is_the_summary_and_nothing_else(command: Command, config_file: Path, run_copy: Path) -> None:
    done = command("run", config_file, "--out", run_copy, "--json")
    assert (done.code, json.loads(done.out)) == (0, json.loads((run_copy / "summary.json").read_text()))


def test_eval_prints_bits_per_byte(command: Command, finished_run: Path, store: Path) -> None:
    values = json.loads(command("eval", finished_run, store, "--json").out)
    assert values["num_documents"] == 100
    text = command("eval", finished_run, store).out
    assert f"{values['bits_per_byte']:.4f} bits/byte" in text


def test_generate_prints_prompt_and_continuation(command: Command, finished_run: Path) -> None:
    options = ("--max-new-tokens", 12, "--num-samples", 3, "--temperature", 1)
    values = json.loads(command("generate", finished_run, "ABC", *options, "--json").out)
    assert values["prompt"] == "ABC"
    assert len(values["continuations"]) == 3
    text = command("generate", finished_run, "ABC", *options).out
    assert text == "\n---\n".join("ABC" + continuation for continuation in values["continuations"]) + "\n"


def test_describe_lists_every_parameter_without_data(command: Command, config_file: Path) -> None:
    description = json.loads(command("describe", config_file, "--set", "data.components.0.path=nowhere", "--json").out)
    assert sum(p["size"] for p in description["parameters"]) == description["num_params"] == 6736
    assert description["tokens"] == 12 * 64
    assert description["flops_per_token"]["causal"] < description["flops_per_token"]["full"]
    text = command("describe", config_file).out
    assert all(p["path"] in text for p in description["parameters"])
    assert "6,736" in text


def test_bad_input_exits_with_2_and_one_line(command: Command, config_file: Path, tmp_path: Path) -> None:
    for arguments in (
        ("run", tmp_path / "absent.toml", "--out", tmp_path / "o"),
        ("run", config_file, "--set", "stepz=3", "--out", tmp_path / "o"),
        ("run", config_file, "--set", "data.components.0.path=nowhere", "--out", tmp_path / "o"),
        ("run", config_file, "--set", "policy=fastest", "--out", tmp_path / "o"),
        ("eval", tmp_path, tmp_path / "absent"),
        ("generate", tmp_path, "A", "--num-samples", 0),
    ):
        done = command(*arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert done.err.startswith("marin-train: ")
        assert done.err.count("\n") == 1


def test_numbers_that_make_no_sense_are_refused(command: Command, config_file: Path, finished_run: Path) -> None:
    for number in (0, -1):
        for arguments in (("generate", finished_run, "A", "--num-samples", number),
                          ("describe", config_file, "--devices", number)):  # fmt: skip
            done = command(*arguments)
            assert (done.code, done.out) == (2, "")
            assert f"{arguments[-2]} {number}: must be positive" in done.err
    assert "must look like 100:104" in command("run", config_file, "--out", "o", "--profile", "9" * 5000 + ":1").err


def test_a_model_that_no_memory_holds_is_told_without_a_traceback(
    command: Command, config_file: Path, tmp_path: Path
) -> None:
    sizes = ("--set", f"model.vocab_size={2**30}", "--set", f"model.hidden_dim={2**20}")
    done = command("run", config_file, *sizes, "--out", tmp_path / "out")
    assert (done.code, done.out) == (1, "")
    assert "out of memory" in done.err.splitlines()[-1]


def test_usage_exits_with_2(command: Command) -> None:
    assert command("bogus").code == 2
    assert command("run").code == 2


def test_drift_exits_with_3(
    command: Command, config_file: Path, finished_run: Path, tmp_path: Path, store: Path
) -> None:
    done = command("run", config_file, "--set", "seed=9", "--out", finished_run)
    assert (done.code, done.out) == (3, "")
    assert "seed: 0 there, 9 asked for" in done.err
    assert command("eval", tmp_path, store).code == 3


def test_divergence_exits_with_1(command: Command, config_file: Path, tmp_path: Path) -> None:
    done = command("run", config_file, "--set", "optimizer.learning_rate=1e30", "--out", tmp_path / "out")
    assert done.code == 1
    assert "learning_rate" in done.err.splitlines()[-1]


@pytest.mark.parametrize("name", ["run", "eval", "generate", "export", "blame", "describe", "data", "held-out"])
def test_help_shows_an_example_and_says_what_every_value_is(command: Command, name: str) -> None:
    done = command(name, "--help")
    assert done.code == 0
    assert f"Example: marin-train {name}" in done.out
    assert not {"STR", "None"} & set(re.findall(r"\w+", done.out))


def test_help_costs_no_jax() -> None:
    script = "import sys; from marin_train import cli; assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_data_says_what_a_run_takes_from_its_mixture(command: Command, config_file: Path) -> None:
    done = command("data", config_file)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].split()[:2] == ["component", "share"]
    described = json.loads(command("data", config_file, "--steps", 3, "--json").out)
    assert described["tokens"] == 3 * 4 * 16


def test_data_says_which_steps_another_mixture_changes(
    command: Command, config_file: Path, tmp_path: Path, tiny_config: Callable[..., TrainConfig]
) -> None:
    other = tmp_path / "other.json"
    values = to_dict(tiny_config())
    values["data"]["seed"] += 1
    other.write_text(json.dumps(values))
    done = command("data", config_file, "--diff", other)
    assert done.out.splitlines()[0] == "12 of 12 steps differ, the first is step 0"
    assert json.loads(command("data", config_file, "--diff", config_file, "--json").out)["ranges"] == []
    listed = json.loads(command("data", config_file, "--step", 2, "--json").out)
    assert [row["row"] for row in listed] == list(range(values["batch_size"]))
    assert "--step -1: must be 0 or more" in command("data", config_file, "--step", -1).err
    refused = command("data", config_file, "--steps", 0)
    assert (refused.code, "--steps 0: must be positive" in refused.err) == (2, True)
