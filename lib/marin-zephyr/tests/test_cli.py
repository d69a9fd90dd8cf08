"""The command, as its users run it."""

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marin_zephyr.cli import main
from marin_zephyr.nodes import FORMATS
from marin_zephyr.tokens.parts import BLOCK_BYTES

SCRIPT = """
from marin_zephyr import Dataset
dataset = Dataset.from_files({raw!r}, on_error="quarantine").map(lambda row: {{"n": row["n"] + 1}}).write_jsonl({out!r})
def build():
    return dataset
"""


NO_PYTHON = ("cut.py", "binary.py", "latin.py", "deep.py")


@pytest.fixture
def script(tmp_path):
    (tmp_path / "raw.jsonl").write_text('{"n":1}\nbad\n')
    path = tmp_path / "clean.py"
    path.write_text(SCRIPT.format(raw=str(tmp_path / "raw.jsonl"), out=str(tmp_path / "out")))
    return path


@pytest.mark.parametrize("name", ["", ":dataset", ":build"])
def test_run_prints_a_table_and_last_where_the_result_lies(script, tmp_path, capsys, name):
    assert main(["run", f"{script}{name}", "--backend", "inline"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(tmp_path / "out")
    assert lines[-2] == f"the refused records: {tmp_path / 'out' / 'rejects'}"
    assert "1 records refused:" in lines
    assert "  1 x not JSON, as in raw.jsonl, line 2, byte offset 8: not JSON: Expecting value" in "\n".join(lines)
    assert max(map(len, lines[:3])) <= 80
    assert (tmp_path / "out" / "part-00000.jsonl").read_text() == '{"n":2}\n'
    assert main(["run", str(script), "--backend", "inline"]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_run_with_json_prints_one_document(script, capsys):
    assert main(["run", str(script), "--backend", "inline", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counters"]["rejected"] == 1
    assert told["refused"]["not JSON"]["count"] == 1
    assert json.loads((script.parent / "out" / "_report.json").read_text()) == told


def test_the_report_of_a_run_that_had_nothing_to_do_leaves_the_earlier_one(script, capsys):
    main(["run", str(script), "--backend", "inline"])
    before = (script.parent / "out" / "_report.json").read_bytes()
    assert main(["run", str(script), "--backend", "inline"]) == 0
    assert (script.parent / "out" / "_report.json").read_bytes() == before


def test_explain_shows_the_plan_and_runs_nothing(script, tmp_path, capsys):
    assert main(["explain", str(script)]) == 0
    assert "map(<lambda> at clean.py:3)" in capsys.readouterr().out
    assert main(["explain", str(script), "--json"]) == 0
    (stage,) = json.loads(capsys.readouterr().out)["stages"]
    assert (stage["name"], stage["tasks"], stage["state"], stage["reads"]["files"]) == ("0-write", 1, "needed", 1)
    assert not (tmp_path / "out").exists()


def test_a_users_mistake_is_one_line_and_exit_code_2(tmp_path, capsys):
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "cut.py").write_text("dataset = (\n")
    (tmp_path / "binary.py").write_bytes(b"\x00\xff\xfe")
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    (tmp_path / "deep.py").write_text("(" * 20_000)
    for arguments in (
        ["run", "nowhere.py"],
        *([command, str(tmp_path / name)] for command in ("run", "explain") for name in NO_PYTHON),
        ["run", str(tmp_path / "empty.py")],
        ["doctor", str(tmp_path / "gone.jsonl")],
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1


def test_a_script_that_fails_is_one_line_with_its_place(tmp_path, capsys):
    script = tmp_path / "clean.py"
    script.write_text("import json\n\ndef dataset():\n    return json.loads('{')\n")
    assert main(["run", str(script)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"zephyr: {script}, line 4: JSONDecodeError: ")


def test_an_unknown_command_is_exit_code_2():
    with pytest.raises(SystemExit) as caught:
        main(["frobnicate"])
    assert caught.value.code == 2


def test_doctor_finds_damage_and_says_where(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_bytes(b'{"t":"x"}\n{"t":"caf\xe9"}\n{"t":1}\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"t":"x"}\n')
    (tmp_path / "c.jsonl").write_bytes(b'{"t":"x"}\n{"u":' + b"[" * 20_000)
    assert main(["doctor", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "line 2, byte 10: not UTF-8: byte 0xe9 at offset 19" in out
    assert "line 3, byte 23: column 't' holds integers from here on and strings before" in out
    assert [line.split()[-3:] for line in out.splitlines() if "b.jsonl" in line] == [["1", "0", "0"]]
    assert out.splitlines()[-1] == "3 files, 2 of them damaged: 3 faults"
    assert "line 2, byte 10: nested more than 256 deep: 20,001 levels" in out
    assert main(["doctor", str(tmp_path / "b.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["num_findings"] == 0


@pytest.mark.parametrize("options", [(), ("--fuzzy",)])
def test_text_and_token_commands_run_the_whole_way(tmp_path, capsys, options):
    (tmp_path / "raw").mkdir()
    for i in range(6):
        (tmp_path / "raw" / f"{i}.txt").write_text(" ".join(f"word{i % 4}{j}" for j in range(40)))
    path = {name: str(tmp_path / name) for name in ("raw", "corpus", "unique", "tok.json", "tokens")}
    commands = [
        ["normalize", path["raw"], "--documents", "file", "--out", path["corpus"], "--workers", "1"],
        ["dedup", path["corpus"], "--out", path["unique"], "--workers", "1", *options],
        ["train-tokenizer", path["unique"], "--vocab-size", "270", "--out", path["tok.json"]],
        ["tokenize", path["unique"], "--tokenizer", path["tok.json"], "--out", path["tokens"], "--workers", "1"],
        ["inspect", path["tokens"], "--verify", "--json"],
    ]
    for command in commands:
        assert main(command) == 0, command
    out = capsys.readouterr().out
    assert json.loads(out[out.rindex("\n{") :])["num_documents"] == 4
    assert main(["dedup", path["tokens"], "--out", str(tmp_path / "x")]) == 2
    capsys.readouterr()
    assert main(["inspect", path["tokens"], "--token", "5", "--json"]) == 0
    place = json.loads(capsys.readouterr().out)["token"]
    assert (place["document"], place["offset"], place["source"]) == (0, 5, "0.txt")


def test_numbers_are_told_one_a_line_and_the_last_line_is_the_place(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "two\\nlines"}\n')
    out = str(tmp_path / "tokens")
    assert main(["tokenize", str(tmp_path / "a.jsonl"), "--tokenizer", "bytes", "--out", out]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("tokenize: 1 documents, 10 tokens, ")
    assert captured.out.splitlines()[-1] == out
    assert main(["inspect", out, "--verify", "--token", "9"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "source      a.jsonl" in told
    assert "damage      none: every byte is as it was written" in told
    assert told[told.index("source      a.jsonl") + 1 :][:2] == [
        "            │ two",
        "            │ lines⟦<|endoftext|>⟧",
    ]
    assert told[-1] == out
    assert main(["inspect", out]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == ["            │ two", "            │ lines", out]


def test_tokenize_sets_aside_what_cannot_be_taken_and_says_so(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": 2}\n{"text": "three"}\n')
    command = ["tokenize", str(tmp_path / "a.jsonl"), "--tokenizer", "bytes", "--out", str(tmp_path / "tokens")]
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1].startswith(
        f"zephyr: {tmp_path}/a.jsonl, line 2, byte offset 16: 'text' is int"
    )
    assert captured.err.rstrip().endswith("repair it, or pass --on-error quarantine to set such records aside")
    assert main([*command, "--on-error", "skip", "--max-bad", "0"]) == 2
    assert "1 records were refused, more than max_bad=0 allows" in capsys.readouterr().err
    assert main([*command, "--on-error", "quarantine", "--no-append-eos", "--part-tokens", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["num_tokens"], report["num_parts"]) == (len("onethree"), 2)
    assert (report["num_rejected"], report["rejected"]) == (1, {"'text' is int, not a string": 1})
    [rejects] = (tmp_path / "tokens" / "rejects").iterdir()
    assert json.loads(rejects.read_text())["line"] == 2


def test_numbers_of_a_report_stand_in_one_column(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": 2}\n')
    command = ["tokenize", str(tmp_path / "a.jsonl"), "--tokenizer", "bytes", "--out", str(tmp_path / "tokens")]
    assert main([*command, "--on-error", "skip"]) == 0
    *lines, _ = capsys.readouterr().out.splitlines()
    assert any(line.startswith("rejected 'text' is int, not a string 1") for line in lines)
    assert len({line.rindex(" ") for line in lines}) == 1


def test_a_tokenizer_is_not_trained_on_damaged_records_and_the_way_out_is_told(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": 2}\n')
    assert main(["train-tokenizer", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "tokenizer.json")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "line 2" in line
    assert line.endswith("; repair it, or take what `zephyr normalize` makes of these inputs")


@pytest.mark.parametrize("line", ['{"text": "' + 150_000 * "a b " + '"}\n', 50 * ('"' + 50_000 * "a" + '"\n')])
def test_a_disk_that_takes_no_more_of_a_store_is_one_line_and_exit_code_2(tmp_path, capsys, line):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' + line)
    command = ["tokenize", str(tmp_path / "a.jsonl"), "--tokenizer", "bytes", "--out", str(tmp_path / "tokens")]
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES - 4096, before[1][1]))  # within what is buffered
    try:
        assert main([*command, "--on-error", "quarantine"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[1])
        signal.signal(signal.SIGXFSZ, before[0])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"zephyr: {tmp_path}/tokens/.work/")
    assert "cannot write (File too large)" in last
    assert main([*command, "--on-error", "quarantine"]) == 0


@pytest.mark.parametrize("token", ["10", "-1"])
def test_a_token_that_is_not_there_is_one_line_and_exit_code_2(tmp_path, capsys, token):
    (tmp_path / "a.jsonl").write_text('{"text": "two\\nlines"}\n')
    main(["tokenize", str(tmp_path / "a.jsonl"), "--tokenizer", "bytes", "--out", str(tmp_path / "tokens")])
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "tokens"), "--token", token]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"zephyr: {tmp_path}/tokens: there is no token {token}; they are numbered from 0 to 9\n"


def test_decontaminate_drops_what_an_evaluation_set_holds_and_tells_it(tmp_path, capsys):
    words = [" ".join(f"w{i}x{j}" for j in range(30)) for i in range(3)]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in words))
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question": words[1]}) + "\n")
    corpus, out = str(tmp_path / "corpus"), str(tmp_path / "clean")
    assert main(["normalize", str(tmp_path / "raw.jsonl"), "--out", corpus, "--workers", "1"]) == 0
    capsys.readouterr()
    command = ["decontaminate", corpus, "--against", str(tmp_path / "eval.jsonl"), "--out", out, "--workers", "1"]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kept"]["documents"], told["dropped"]["documents"]) == (2, 1)
    assert told["evaluations"][0]["num_contaminated"] == 1
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == out
    assert any(line.split()[-3:] == ["num", "contaminated", "1"] for line in lines)
    assert main(["decontaminate", corpus, "--against", str(tmp_path / "gone.jsonl"), "--out", out]) == 2


def test_decontaminate_works_from_a_script_without_a_guard(tmp_path):
    """Workers import nothing of the script, so it needs no ``if __name__ == "__main__"``."""
    text = " ".join(f"w{j}" for j in range(30))
    (tmp_path / "raw.jsonl").write_text(json.dumps({"text": text}) + "\n" + json.dumps({"text": "other"}) + "\n")
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question": text}) + "\n")
    script = tmp_path / "clean.py"
    script.write_text(
        "from marin_zephyr.text import decontaminate, normalize\n"
        "normalize(['raw.jsonl'], 'corpus', workers=2)\n"
        "print(decontaminate('corpus', 'clean', against='eval.jsonl', workers=2).dropped.documents)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_quality_drops_what_breaks_a_rule_and_tells_which(tmp_path, capsys):
    texts = ["function() { return 1; }", "the ends of lines are told by marks."]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus, out = str(tmp_path / "corpus"), str(tmp_path / "good")
    assert main(["normalize", str(tmp_path / "raw.jsonl"), "--out", corpus, "--workers", "1"]) == 0
    capsys.readouterr()
    assert main(["quality", corpus, "--out", out, "--rules", "c4", "fineweb", "--workers", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kept"]["documents"], told["dropped"]["documents"]) == (1, 1)
    assert told["broken"]["curly brackets"] == 1
    assert "short lines" in told["broken"]
    assert "words" not in told["broken"]
    assert main(["quality", corpus, "--out", out, "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == out


@pytest.mark.parametrize("command", ["run", "explain"])
def test_where_a_dataset_runs_is_said_by_flags(script, capsys, command):
    assert main([command, str(script), "--backend", "inline", "--memory", "1GiB", "--workers", "1"]) == 0
    capsys.readouterr()
    for flags, told in (
        (["--memory", "lots"], "memory='lots'"),
        (["--workers", "0"], "workers=0"),
        (["--ray-address", "auto"], "ray_address='auto'"),
    ):
        assert main([command, str(script), *flags]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"zephyr: {told}")
        assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["doctor", "normalize"])
def test_help_lists_every_format(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert f"{{None,{','.join(FORMATS)}}}" in capsys.readouterr().out


COMMANDS = ("run", "explain", "doctor", "normalize", "dedup", "quality", "decontaminate", "train-tokenizer")
COMMANDS += ("tokenize", "inspect")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps_with_an_example_and_has_json(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0
    assert f"Example: zephyr {command}" in " ".join(out.replace("│", " ").split())
    assert "--json" in out


def test_a_script_without_the_dataset_says_which_it_has(tmp_path, capsys):
    script = tmp_path / "clean.py"
    script.write_text("from marin_zephyr import Dataset\nraw = Dataset.from_rows([])\nn = 3\n")
    for name, told in (("", "has no 'dataset'"), (":n", "'n' is int, no Dataset")):
        assert main(["explain", f"{script}{name}"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line
        assert line.endswith("; it has raw: say which after a colon")


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_a_function_that_fails_shows_the_callers_own_lines_and_no_traceback(tmp_path, capsys, backend):
    script = tmp_path / "clean.py"
    script.write_text(
        "from marin_zephyr import Dataset\n"
        "def inner(row):\n    return row['nope']\n"
        "def clean(row):\n    return {'a': inner(row)}\n"
        f"dataset = Dataset.from_rows([{{'t': 1}}]).map(clean).write_jsonl({str(tmp_path / 'out')!r})\n"
    )
    assert main(["run", str(script), "--backend", backend, "--workers", "1"]) == 1
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("zephyr:", " "))]
    assert error[0] == "zephyr: map(clean) failed on the row of {'t': 1}: KeyError: 'nope'"
    assert [line.strip().removeprefix(f"{script}, ") for line in error[1:]] == ["line 5, in clean", "line 3, in inner"]


def test_an_output_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    script = tmp_path / "clean.py"
    for out in (tmp_path / "taken", tmp_path / "taken" / "below"):
        script.write_text(
            f"from marin_zephyr import Dataset\ndataset = Dataset.from_rows([{{'t': 1}}]).write_jsonl({str(out)!r})\n"
        )
        assert main(["run", str(script), "--backend", "inline"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk takes root")
def test_a_full_disk_is_one_line(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this system lets nobody mount")
    try:
        script = tmp_path / "clean.py"
        script.write_text(
            "from marin_zephyr import Dataset\n"
            f"dataset = Dataset.from_rows([{{'t': 'x' * 1000}}] * 500).write_jsonl({str(disk / 'out')!r})\n"
        )
        command = [sys.executable, "-m", "marin_zephyr.cli", "run", str(script), "--backend", "inline"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == (
            f"zephyr: {disk}/out: cannot write (No space left on device); "
            "free some space and run again: committed work is kept"
        )
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_names_that_are_no_text_work_in_the_plainest_of_locales(tmp_path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    Path(os.fsdecode(raw)).write_text('{"n": 1}\nbad\n')
    script = Path(os.fsdecode(os.fsencode(tmp_path) + b"/cl\xe9an.py"))
    out = str(tmp_path / "out")
    script.write_text(
        "import os\nfrom marin_zephyr import Dataset\n"
        f"raw = os.fsdecode({raw!r})\n"
        f'dataset = Dataset.from_files(raw, on_error="quarantine").write_jsonl({out!r})\n'
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    for arguments in (["run", script, "--backend", "inline"], ["explain", script], ["doctor", os.fsdecode(raw)]):
        command = [sys.executable, "-m", "marin_zephyr.cli", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == (1 if arguments[0] == "doctor" else 0), done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout


def test_a_reader_of_the_output_may_go_away(tmp_path):
    (tmp_path / "a.jsonl").write_text("bad\n" * 10_000)
    command = f"{shlex.quote(sys.executable)} -m marin_zephyr.cli doctor {shlex.quote(str(tmp_path))} --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout == "[\n"
    assert done.stderr == ""
