"""The experiment on balance rules, made tiny: rules through data, training, evaluation and the comparison."""

import json
from pathlib import Path

import pytest

from quickstart_runs import ROOT, executed, finish, output, run_records, write_corpus

SCRIPT = ROOT / "experiments" / "moe" / "balancing.py"
RULES = ("quantile", "expert_choice")
STEPS = 6


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"))
    # In one process: what is compared is no crash, and a start of jax for each step takes longer than the step.
    return ("--tiny", "--steps", str(STEPS), "--corpus", str(corpus), "--launcher", "inline", "--rules", *RULES)


@pytest.fixture(scope="module")
def finished(flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    prefix = tmp_path_factory.mktemp("finished")
    code, said = finish(*flags, prefix=prefix, script=SCRIPT)
    assert code == 0, said
    return prefix, said


@pytest.fixture(scope="module")
def table(finished: tuple[Path, str]) -> dict[str, dict]:
    (record,) = run_records(finished[0])
    value = next(node["value"] for node in record["nodes"] if node["name"] == "compare_rules")
    return {row["rule"]: row for row in value["rules"]}


def test_every_rule_is_told_with_its_loss_and_balance_and_the_unlike_one_is_marked(
    finished: tuple[Path, str], table: dict[str, dict]
) -> None:
    lines = finished[1].splitlines()
    for rule, row in table.items():
        (line,) = [line for line in lines if line.startswith(f"{rule} ")]
        assert f"{row['eval_loss']:.4f}" in line
        assert f"{row['max_vio']:.3f}" in line
        assert ("*" in line) == (rule == "expert_choice") == (not row["causal"])
    assert table.keys() == set(RULES)


def test_figures_are_those_of_the_runs(finished: tuple[Path, str], table: dict[str, dict]) -> None:
    assert (table["expert_choice"]["max_vio"], table["expert_choice"]["would_drop_at_1.25"]) == (0, 0)
    assert table["quantile"]["max_vio"] > 0
    rows = [
        json.loads(line) for line in (output(finished[0], "train_quantile") / "metrics.jsonl").read_text().splitlines()
    ]
    assert table["quantile"]["max_vio"] == pytest.approx(sum(row["routing/max_vio"] for row in rows) / STEPS)
    assert table["quantile"]["eval_loss"] == pytest.approx(
        next(n["value"]["loss"] for n in run_records(finished[0])[0]["nodes"] if n["name"] == "evaluate_quantile")
    )


def test_rules_are_compared_at_equal_compute_and_on_the_same_data(finished: tuple[Path, str]) -> None:
    summaries = [json.loads((output(finished[0], f"train_{rule}") / "summary.json").read_text()) for rule in RULES]
    for name in ("tokens", "flops_total", "mixture_digest", "policy", "seed"):
        assert len({summary[name] for summary in summaries}) == 1, name


def test_each_rule_has_its_curves_in_the_report(finished: tuple[Path, str]) -> None:
    for rule in RULES:
        path = output(finished[0], "compare_rules") / rule / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
        assert rows[0].keys() >= {"loss", "max_vio", "load_entropy", "dead"}
    (page,) = (finished[0] / "runs").glob("*.html")
    text = page.read_text()
    assert all(f"compare_rules, {rule}" in text for rule in RULES)


def test_loads_of_experts_are_kept_with_the_model(finished: tuple[Path, str]) -> None:
    assert (output(finished[0], "train_quantile") / "routing.jsonl").is_file()


def test_again_there_is_nothing_to_do(finished: tuple[Path, str], flags: tuple[str, ...]) -> None:
    code, said = finish(*flags, prefix=finished[0], script=SCRIPT)
    assert (code, executed(run_records(finished[0])[-1])) == (0, set()), said
