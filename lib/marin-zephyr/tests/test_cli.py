"""The command, as its users run it."""

import json

import pytest

from marin_zephyr.cli import main

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
    assert "1 records refused" in lines[-2]
    assert (tmp_path / "out" / "part-00000.jsonl").read_text() == '{"n":2}\n'
    assert main(["run", str(script), "--backend", "inline"]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_run_with_json_prints_one_document(script, capsys):
    assert main(["run", str(script), "--backend", "inline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counters"]["rejected"] == 1


def test_explain_shows_the_plan_and_runs_nothing(script, tmp_path, capsys):
    assert main(["explain", str(script)]) == 0
    assert "map(<lambda> at clean.py:3)" in capsys.readouterr().out
    assert main(["explain", str(script), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"][0].startswith("0-write: 1 tasks")
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
    assert "column 't' holds int and str" in out
    assert "b.jsonl: sound, 1 rows" in out
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
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["token", "source", "a.jsonl"] in told
    assert ["damage", "none"] in told
    assert ["sample", '"two\\nlines"'] in told


@pytest.mark.parametrize("token", ["10", "-1"])
def test_a_token_that_is_not_there_is_one_line_and_exit_code_2(tmp_path, capsys, token):
    (tmp_path / "a.jsonl").write_text('{"text": "two\\nlines"}\n')
    main(["tokenize", str(tmp_path / "a.jsonl"), "--tokenizer", "bytes", "--out", str(tmp_path / "tokens")])
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "tokens"), "--token", token]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"zephyr: {tmp_path}/tokens: there is no token {token}; they are numbered from 0 to 9\n"
