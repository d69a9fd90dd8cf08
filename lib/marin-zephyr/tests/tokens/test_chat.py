"""Conversations: a template's control tokens are ids, a message's text is text, and the assistant's words count."""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from marin_zephyr.cli import main
from marin_zephyr.errors import BadRecordError, ChatTemplateError, SchemaError
from marin_zephyr.tokens import ChatFormat, Tokenizer, TokenStore, load_tokenizer, tokenize
from marin_zephyr.tokens.batches import Encoded, Rows
from marin_zephyr.tokens.chat import ChatEncoder
from marin_zephyr.tokens.texts import SpecialIds

CHATS = Path(__file__).with_name("chats")


class Format(NamedTuple):
    """A model's chat format; ``ends`` follows the assistant's words, ``strips`` swallow the white space after them."""

    special: tuple[str, ...]
    eos: str
    ends: str
    bos: str | None = None
    strips: tuple[str, ...] = ()
    trims: bool = False


# fmt: off
FORMATS = {
    "chatml": Format(("<|im_start|>", "<|im_end|>"), "<|im_end|>", "<|im_end|>"),
    "thinking": Format(("<|im_start|>", "<|im_end|>"), "<|im_end|>", "<|im_end|>"),
    "llama": Format(
        ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        "<|eot_id|>", "<|eot_id|>", bos="<|begin_of_text|>", trims=True,
    ),
    "gemma": Format(
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<eos>", "<end_of_turn>", bos="<bos>", trims=True
    ),
    "mistral": Format(("<s>", "</s>", "[INST]", "[/INST]"), "</s>", "</s>", bos="<s>"),
    "zephyr": Format(("<s>", "</s>"), "</s>", "</s>", bos="<s>"),
    "phi": Format(
        ("<|end_of_doc|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), "<|end_of_doc|>", "<|end|>",
        strips=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    ),
}
# fmt: on

_ALL_SPECIAL = sorted({string for form in FORMATS.values() for string in form.special})
# Whole Unicode but for U+FDD0 to U+FDDF, with what borders and merges could trip over drawn often.
_characters = st.one_of(
    st.characters(codec="utf-8", exclude_characters="".join(map(chr, range(0xFDD0, 0xFDE0)))),
    st.sampled_from("é\u0301\u200d\r\n\x00 \tab1👩🏽‍🚀<|>[/]"),
)
_said = st.text(_characters, max_size=30).map(lambda text: "a" + text)  # a template may refuse silence
# Strings of the sources are among what hypothesis draws, so that of the trained tokenizer itself is drawn, too.
_harmless = _said.filter(lambda text: not any(string in text for string in (*_ALL_SPECIAL, "<|endoftext|>")))
_hostile = st.lists(st.one_of(_said, st.sampled_from(_ALL_SPECIAL)), min_size=1, max_size=5).map("".join)


def conversations(text: st.SearchStrategy[str]) -> st.SearchStrategy[list[dict[str, str]]]:
    """Users and assistants in turn, the assistant last."""
    turns = st.lists(st.tuples(text, text), min_size=1, max_size=3)
    return turns.map(lambda pairs: [m for user, assistant in pairs for m in talk(user, assistant)])


def talk(*said: str) -> list[dict[str, str]]:
    """A conversation in which the user begins."""
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]


def template(name: str) -> str:
    return (CHATS / f"{name}.jinja").read_text()


class Chat(NamedTuple):
    """A format's tokenizer, and how to encode with it."""

    form: Format
    template: str
    tokenizer: Tokenizer

    def id_of(self, string: str) -> int:
        number = self.tokenizer.backend.token_to_id(string)
        assert number is not None
        return number

    def encode(self, rows: Sequence[Any], **options: Any) -> Encoded:
        return self.encoder(**options).encode(as_rows(pl.DataFrame({"messages": rows})))

    @cache  # noqa: B019  as long as the session, like its fixtures
    def encoder(self, *, template: str | None = None, eos: bool = False, bos: bool = False) -> ChatEncoder:
        specials = SpecialIds(bos=self.tokenizer.bos_id if bos else None, eos=self.tokenizer.eos_id if eos else None)
        return ChatEncoder(self.tokenizer, specials, template=template or self.template)

    def encode_one(self, messages: Any, **options: Any) -> tuple[list[int], list[bool]]:
        encoded = self.encode([messages], **options)
        assert not encoded.refused
        assert encoded.mask is not None
        return encoded.ids.tolist(), encoded.mask.tolist()

    def refusal(self, messages: Any, **options: Any) -> str:
        encoded = self.encode([messages], **options)
        assert (encoded.lengths.tolist(), len(encoded.ids)) == ([0], 0)
        return encoded.refused[0]

    def learned(self, ids: Sequence[int], mask: Sequence[bool]) -> list[str]:
        """The text of each run of ids that count."""
        runs = np.split(np.array(ids), np.flatnonzero(np.diff(mask)) + 1)
        return [self.tokenizer.decode(run) for n, run in enumerate(runs) if mask[0] == (n % 2 == 0)]


def as_rows(frame: pl.DataFrame) -> Rows:
    return Rows(file=0, first_row=0, frame=frame, sources=pl.Series(["a.jsonl"] * len(frame), dtype=pl.String))


@pytest.fixture(scope="session")
def chats(trained: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Chat]:
    """Every format, with a tokenizer that has its control tokens."""
    made = {}
    for name, form in FORMATS.items():
        backend = Backend.from_str(trained.content.decode())
        backend.add_special_tokens([AddedToken(t, normalized=False, rstrip=t in form.strips) for t in form.special])
        directory = tmp_path_factory.mktemp(name)
        backend.save(str(directory / "tokenizer.json"))
        tokenizer = load_tokenizer(directory, eos_token=form.eos, bos_token=form.bos)
        made[name] = Chat(form, template(name), tokenizer)
    return made


@pytest.fixture(scope="session", params=FORMATS)
def chat(request: pytest.FixtureRequest, chats: dict[str, Chat]) -> Chat:
    """Each format."""
    return chats[request.param]


@pytest.fixture(scope="session")
def chatml(chats: dict[str, Chat]) -> Chat:
    return chats["chatml"]


@cache
def reference(chat: Chat) -> tuple[jinja2.Template, Backend]:
    """The format by the bare libraries."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    source = chat.template.replace("{%- generation %}", "{%- if true %}").replace(
        "{%- endgeneration %}", "{%- endif %}"
    )
    return environment.from_string(source), Backend.from_str(chat.tokenizer.content.decode())


def reference_ids(chat: Chat, messages: list[dict[str, str]]) -> list[int]:
    """Those of the rendered text, parsed with its special tokens."""
    rendering, backend = reference(chat)
    text = rendering.render(
        messages=messages, bos_token=chat.form.bos, eos_token=chat.form.eos, add_generation_prompt=False
    )
    return backend.encode(text, add_special_tokens=False).ids


@settings(max_examples=20)
@given(messages=conversations(_harmless))
def test_ids_are_those_of_the_rendered_text_with_its_special_tokens(chat: Chat, messages: list[dict[str, str]]):
    ids, _ = chat.encode_one(messages)
    assert ids == reference_ids(chat, messages)


@settings(max_examples=20)
@given(messages=conversations(_hostile))
def test_special_strings_in_messages_make_no_control_token(chat: Chat, messages: list[dict[str, str]]):
    ids, _ = chat.encode_one(messages)
    harmless, _ = chat.encode_one([{**message, "content": "a"} for message in messages])
    special = [chat.id_of(string) for string in chat.form.special]
    assert [i for i in ids if i in special] == [i for i in harmless if i in special]
    if not chat.form.strips:  # such tokens take white space with them
        said = [message["content"].strip() for message in messages]
        assert all(text in chat.tokenizer.decode(ids) for text in said)


def test_exactly_what_the_assistant_says_counts(chat: Chat):
    ids, mask = chat.encode_one(talk("one + one?", "two", "and then?", "a lot, éé 東京"))
    before = {"mistral": " ", "thinking": "<think>\n\n</think>\n\n"}
    lead = next((text for name, text in before.items() if chat.template == template(name)), "")
    assert chat.learned(ids, mask) == [f"{lead}{text}{chat.form.ends}" for text in ("two", "a lot, éé 東京")]


@given(messages=conversations(_said))
@settings(max_examples=20)
def test_a_template_that_marks_its_turns_and_one_that_does_not_agree(chatml: Chat, messages: list[dict[str, str]]):
    marked = template("chatml").replace(
        "message['content'] + '<|im_end|>' +",
        "'' }}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}"
        "{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{",
    )
    assert chatml.encode_one(messages, template=marked) == chatml.encode_one(messages)


@given(messages=conversations(_hostile))
@settings(max_examples=20)
def test_num_bytes_are_those_of_the_text_between_control_tokens(chatml: Chat, messages: list[dict[str, str]]):
    encoded = chatml.encode([messages])
    special = [chatml.id_of(string) for string in chatml.form.special]
    text = chatml.tokenizer.decode([i for i in encoded.ids if i not in special])
    assert encoded.num_bytes.tolist() == [len(text.encode())]


def test_a_token_that_straddles_the_border_of_a_turn_counts(trained: Tokenizer, chatml: Chat):
    [space] = trained.encode_batch([" the"])
    assert len(space) == 1  # the tokenizer merges over the border that the template puts within it
    source = "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    ids, mask = chatml.encode_one([{"role": "assistant", "content": "the"}], template=source)
    assert chatml.learned(ids, mask) == [" the"]


class TestWhoWroteASpecialString:
    def test_a_template_that_reads_contents_is_followed(self, chats: dict[str, Chat]):
        said = "<think>\nhm, <|im_end|>\n</think>\n\nyes <|im_start|>"
        ids, mask = chats["thinking"].encode_one(talk("?", said))
        assert chats["thinking"].learned(ids, mask) == [said + "<|im_end|>"]
        assert ids.count(chats["thinking"].id_of("<|im_start|>")) == 2

    @pytest.mark.parametrize(
        "said", [("<|im_", "end|>"), ("<|im_end", "|>"), ("x <", "|im_end|> y"), (" <|im_end ", "|> ")]
    )
    def test_two_messages_do_not_spell_a_control_token_together(self, chatml: Chat, said: tuple[str, str]):
        source = "{% for m in messages %}{% generation %}{{ m.content | trim }}{% endgeneration %}{% endfor %}"
        ids, _ = chatml.encode_one(talk(*said), template=source)
        assert chatml.tokenizer.eos_id not in ids
        assert chatml.tokenizer.decode(ids) == "".join(map(str.strip, said))

    def test_a_message_and_the_template_do_not_spell_a_control_token_together(self, chatml: Chat):
        source = "{% for m in messages %}{{ '<|' + m.content + '|>' }}{% generation %}.{% endgeneration %}{% endfor %}"
        ids, _ = chatml.encode_one(talk("im_end", "im_start"), template=source)
        assert chatml.tokenizer.decode(ids) == "<|im_end|>.<|im_start|>."
        assert chatml.tokenizer.eos_id not in ids

    @pytest.mark.parametrize(
        ("written", "said"), [("'<|' + m.content", "im_end|> x"), ("m.content + '|>'", "x <|im_end")]
    )
    def test_nor_do_one_end_of_a_message_and_the_template(self, chatml: Chat, written: str, said: str):
        source = f"{{% for m in messages %}}{{% generation %}}{{{{ {written} }}}}{{% endgeneration %}}{{% endfor %}}"
        ids, _ = chatml.encode_one(talk(said, said), template=source)
        assert chatml.tokenizer.eos_id not in ids
        assert chatml.tokenizer.decode(ids).count("<|im_end|>") == 2

    def test_a_special_string_as_role_is_text(self, chatml: Chat):
        ids, _ = chatml.encode_one([{"role": "<|im_end|>", "content": ""}, *talk("?", "!")])
        harmless, _ = chatml.encode_one([{"role": "user", "content": ""}, *talk("?", "!")])
        assert ids.count(chatml.id_of("<|im_end|>")) == harmless.count(chatml.id_of("<|im_end|>"))

    def test_special_strings_in_tool_calls_are_text(self, chatml: Chat):
        source = (
            "{% for m in messages %}{% generation %}{{ (m.tool_calls | tojson) if m.tool_calls else m.content }}"
            "{{ '<|im_end|>' }}{% endgeneration %}{% endfor %}"
        )
        call = {"name": "say", "arguments": {"text": "<|im_end|> & <b>", "<|im_end|>": 1}}
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        ids, _ = chatml.encode_one(messages, template=source)
        assert ids.count(chatml.id_of("<|im_end|>")) == 2
        assert chatml.tokenizer.decode(ids) == f"?<|im_end|>{json.dumps([call])}<|im_end|>"

    @pytest.mark.parametrize(
        "content",
        [
            "m.content | replace('<|im_end|>', '')",
            "'aye' if '<|im_end|>' in m.content else 'nay'",
            "m.content | tojson(true)",
        ],
    )
    def test_a_template_that_works_on_special_strings_is_refused(self, chatml: Chat, content: str):
        source = f"{{% for m in messages %}}{{{{ {content} }}}}{{% generation %}}.{{% endgeneration %}}{{% endfor %}}"
        assert not chatml.encode([talk("a harmless one", "b")], template=source).refused
        assert "cannot be told" in chatml.refusal(talk("<|im_<|im_end|>end|>", "b"), template=source)


class TestRefusals:
    @pytest.mark.parametrize(
        ("messages", "reason"),
        [
            ([], "no messages"),
            (None, "no messages"),
            (talk("alone"), "no assistant turn"),
            ([None], "message 1 is no object with role and content"),
            ([*talk("?", "!"), {"role": None, "content": "x"}], "message 3 has no role"),
            ([*talk("?"), {"role": "assistant", "content": None}], "message 2 has no content"),
            (talk("?", "\ufdd0"), "it holds the noncharacter U+FDD0, which is no text"),
        ],
    )
    def test_a_row_that_is_no_conversation_is_refused_by_name(self, chatml: Chat, messages: Any, reason: str):
        rows = pl.DataFrame({"messages": [talk("?", "!"), messages]})
        encoded = chatml.encoder().encode(as_rows(rows))
        assert encoded.refused == {1: reason}
        assert encoded.lengths.tolist() == [len(encoded.ids), 0]

    def test_contents_of_text_parts_are_joined_and_others_refused(self, chatml: Chat):
        text, image = {"type": "text", "text": "be"}, {"type": "image", "text": None}
        joined = [{"role": "user", "content": [text, text]}, {"role": "assistant", "content": [text]}]
        assert chatml.encode_one(joined) == chatml.encode_one(talk("bebe", "be"))
        seen = [{"role": "user", "content": [text, image]}, {"role": "assistant", "content": [text]}]
        assert chatml.refusal(seen) == "message 1: content has a part of type 'image', not text alone"

    def test_contents_that_are_no_text_are_refused(self, chatml: Chat):
        messages = [{"role": "assistant", "content": 3}]
        assert chatml.refusal(messages) == "message 1: content is int, not text"

    def test_a_template_refuses_in_its_own_words(self, chats: dict[str, Chat]):
        messages = [{"role": "system", "content": "be"}, *talk("?", "!")]
        assert chats["gemma"].refusal(messages) == "the chat template refuses it: System role not supported"

    def test_a_template_that_fails_is_refused_with_its_line(self, chatml: Chat):
        source = "{% for m in messages %}\n{{ m.content }}\n{{ m.name + 'x' }}\n{% endfor %}"
        assert "fails on line 3: 'dict object' has no attribute 'name'" in chatml.refusal(
            talk("?", "!"), template=source
        )

    def test_python_is_out_of_a_templates_reach(self, chatml: Chat):
        source = "{{ messages.__class__.__mro__ }}"
        assert "access to attribute '__class__'" in chatml.refusal(talk("?", "!"), template=source)

    @pytest.mark.parametrize(
        ("written", "reason"),
        [
            ("{{ messages | map(attribute='content') }}", "it writes 'generator', which is no text"),
            ("{{ raise_exception }}", "it writes 'function', which is no text"),
            ("{{ '\\ud800' }}", "it holds the surrogate U\\+D800"),
            ("{{ raise_exception('\\ud800') }}", r"refuses it: \\ud800"),
        ],
    )
    def test_what_is_no_text_in_every_run_is_refused(self, chatml: Chat, written: str, reason: str):
        source = written + "{% generation %}x{% endgeneration %}"
        assert re.search(reason, chatml.refusal(talk("?", "!"), template=source))

    def test_a_template_that_asks_for_the_date_is_refused_by_name(self, chatml: Chat):
        source = "{{ strftime_now('%Y') }}"
        reason = chatml.refusal(talk("?", "!"), template=source)
        assert "strftime_now" in reason
        assert "must not depend on the day" in reason

    def test_turns_that_cannot_be_told_apart_are_refused_with_the_fix(self, chatml: Chat):
        source = "{{ messages | length }}" + chatml.template  # no rendering begins with another
        assert "{% generation %}" in chatml.refusal(talk("?", "!"), template=source)

    def test_a_heading_that_the_template_gives_no_prompt_for_is_not_taken_for_speech(self, chatml: Chat):
        source = chatml.template.split("{%- if add_generation_prompt")[0]
        assert "{% generation %}" in chatml.refusal(talk("?", "!"), template=source)

    def test_an_assistant_of_whom_no_word_is_written_is_refused(self, chatml: Chat):
        source = "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}"
        assert chatml.refusal(talk("?", "!"), template=source) == "nothing in it counts in the loss"

    def test_a_column_of_other_things_is_refused_by_name(self, chatml: Chat):
        encoder = chatml.encoder()
        with pytest.raises(SchemaError, match="'messages' is Int64, not a list of messages"):
            encoder.encode(as_rows(pl.DataFrame({"messages": [1]})))
        with pytest.raises(SchemaError, match="no column 'messages': there is text"):
            encoder.encode(as_rows(pl.DataFrame({"text": ["hi"]})))


class TestEnds:
    def test_ids_that_the_template_wrote_are_not_doubled(self, chat: Chat):
        written, _ = chat.encode_one(talk("?", "!"))
        ids, mask = chat.encode_one(talk("?", "!"), eos=True, bos=chat.form.bos is not None)
        decode = chat.tokenizer.decode
        if chat.form.eos in decode(written):
            assert (
                decode(ids).removeprefix(chat.form.bos or "")
                == decode(written).removeprefix(chat.form.bos or "").rstrip()
            )
        else:
            assert ids == [*written, chat.tokenizer.eos_id]
        assert ids[-1] == chat.tokenizer.eos_id
        if chat.form.bos is not None:
            assert ids.count(chat.id_of(chat.form.bos)) == 1
            assert (ids[0], mask[0]) == (chat.tokenizer.bos_id, False)

    def test_an_appended_eos_counts_if_what_it_ends_does(self, chatml: Chat):
        source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{{ tail }}{% endfor %}"
        for tail, counts in (("", True), ("\\n", False)):
            ids, mask = chatml.encode_one(talk("?", "!"), template=source.replace("tail", f"'{tail}'"), eos=True)
            assert (ids[-1], mask[-1]) == (chatml.tokenizer.eos_id, counts)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"id": 1}', "no field 'messages': it has id"),
        ('"hi"', "it is str, not a list of messages"),
        ("[{", "messages is no JSON that can be taken"),
        ('[{"role": "user", "role": "assistant", "content": ""}]', "key 'role' stands twice in one object"),
    ],
)
def test_json_of_other_things_is_refused_by_name(chatml: Chat, text: str, reason: str):
    encoded = chatml.encoder().encode(as_rows(pl.DataFrame({"messages": [json.dumps(talk("?", "!")), text]})))
    assert reason in encoded.refused[1]
    assert encoded.lengths[0] == len(encoded.ids) > 0


def test_share_gpt_rows_are_conversations(chatml: Chat):
    said = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "!"}]
    assert chatml.encode_one(said) == chatml.encode_one(talk("?", "!"))


def test_a_polite_template_falls_back_to_its_own_date(chats: dict[str, Chat]):
    ids, _ = chats["llama"].encode_one(talk("?", "!"))
    assert "Today Date: 26 Jul 2024" in chats["llama"].tokenizer.decode(ids)


def test_a_replica_encodes_alike_and_the_identity_names_the_template(chatml: Chat):
    encoder = chatml.encoder()
    rows = as_rows(pl.DataFrame({"messages": [talk("?", "! <|im_end|>")]}))
    assert encoder.replica().encode(rows).ids.tolist() == encoder.encode(rows).ids.tolist()
    assert encoder.replica().identity == encoder.identity
    assert chatml.encoder(template=chatml.template + "{# another #}").identity != encoder.identity
    json.dumps(encoder.identity)


class TestStore:
    """From files to the bits that training reads."""

    @staticmethod
    def learned(directory: Path) -> list[str]:
        """The text of each run of tokens that count, by the store's files alone."""
        tokenizer = load_tokenizer(directory)
        ids = np.fromfile(directory / "part-00000.bin", "<u2")
        bits = np.unpackbits(np.fromfile(directory / "part-00000.mask", np.uint8), bitorder="little")
        assert len(bits) == -(-len(ids) // 8) * 8
        assert not bits[len(ids) :].any()
        runs = np.split(np.arange(len(ids)), np.flatnonzero(np.diff(bits[: len(ids)])) + 1)
        return [tokenizer.decode(ids[run]) for run in runs if bits[run[0]]]

    @staticmethod
    def write(directory: Path, chat: Chat, rows: Sequence[Any], suffix: str = "jsonl") -> Path:
        """Rows as a file, beside a tokenizer's directory ``t`` with its template."""
        (directory / "t").mkdir()
        (directory / "t" / "tokenizer.json").write_bytes(chat.tokenizer.content)
        config = {"eos_token": chat.form.eos, "chat_template": chat.template}
        (directory / "t" / "tokenizer_config.json").write_text(json.dumps(config))
        path = directory / f"chats.{suffix}"
        if suffix == "parquet":
            pl.DataFrame(rows).write_parquet(path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    @pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
    def test_what_the_mask_keeps_is_what_assistants_said(self, chatml: Chat, tmp_path: Path, suffix: str):
        said = [(f"answer {n} <|im_end|>", f"naïve {n}") for n in range(40)]
        rows = [{"messages": talk(f"question {n}", one, "<|im_start|>", two)} for n, (one, two) in enumerate(said)]
        path = self.write(tmp_path, chatml, rows, suffix)
        out = tmp_path / "store"
        assert main(["tokenize", str(path), "--tokenizer", str(tmp_path / "t"), "--out", str(out), "--chat"]) == 0
        assert self.learned(out) == [f"{text}<|im_end|>" for pair in said for text in pair]
        assert TokenStore.open(out).verify() == ()

    def test_a_row_without_an_assistant_turn_is_rejected_with_its_reason(self, chatml: Chat, tmp_path: Path):
        path = self.write(tmp_path, chatml, [{"messages": talk("?", "!")}, {"messages": talk("nobody answers")}])
        options: dict[str, Any] = {"tokenizer": tmp_path / "t", "supervised": ChatFormat()}
        with pytest.raises(BadRecordError, match="row 2: no assistant turn"):
            tokenize(path, tmp_path / "raised", **options)
        report = tokenize(path, tmp_path / "store", on_error="quarantine", **options)
        assert (report.num_documents, report.rejected) == (1, {"no assistant turn": 1})
        [rejects] = (tmp_path / "store" / "rejects").iterdir()
        assert json.loads(rejects.read_text())["reason"] == "no assistant turn"

    def test_rows_of_json_need_not_be_of_one_type(self, chatml: Chat, tmp_path: Path):
        arguments = [{"b": 1, "a": "x"}, {"a": [1, 2]}, {"a": None, "c": {"d": True}}, {}]
        calls = [{"tool_calls": [{"name": "f", "arguments": one}]} for one in arguments]
        parts = {"role": "user", "content": [{"type": "text", "text": "?"}]}
        rows: list[Any] = [{"messages": [parts, {"role": "assistant", "content": None, **one}]} for one in calls]
        rows.append({"messages": talk("?", "!")})
        source = (
            "{% for m in messages %}{% generation %}{{ m.tool_calls[0].arguments | tojson if m.tool_calls else '' }}"
            "{% endgeneration %}{{ '.' }}{% endfor %}"
        )
        path = self.write(tmp_path, chatml, rows)
        tokenize(path, tmp_path / "store", tokenizer=tmp_path / "t", supervised=ChatFormat(source), on_error="skip")
        written = [{key: value for key, value in one.items() if value is not None} for one in arguments]
        assert self.learned(tmp_path / "store") == [json.dumps(one) for one in written]


class TestWhereTemplatesComeFrom:
    @staticmethod
    def learned(chat: ChatFormat, tokenizer: Tokenizer, beside: Path | str | None) -> str:
        encoder = ChatEncoder.of(chat, tokenizer, SpecialIds(bos=None, eos=None), beside=beside)
        encoded = encoder.encode(as_rows(pl.DataFrame({chat.messages_field: [talk("?", "!")]})))
        assert encoded.mask is not None
        return tokenizer.decode(encoded.ids[encoded.mask])

    @pytest.mark.parametrize("kind", ["file", "text", "builtin", "jinja", "config", "named"])
    def test_each_is_found(self, chatml: Chat, tmp_path: Path, kind: str):
        (tmp_path / "tokenizer.json").write_bytes(chatml.tokenizer.content)
        source: dict[str, Any] = {"file": tmp_path / "x.jinja", "text": chatml.template, "builtin": "chatml"}
        config: Any = {"config": chatml.template, "named": [{"name": "default", "template": chatml.template}]}.get(kind)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": config}))
        if kind in ("file", "jinja"):
            (tmp_path / {"file": "x.jinja", "jinja": "chat_template.jinja"}[kind]).write_text(chatml.template)
        for beside in (tmp_path, tmp_path / "tokenizer.json"):
            assert self.learned(ChatFormat(source.get(kind)), chatml.tokenizer, beside) == "!<|im_end|>"

    def test_blocks_within_blocks_are_one_stretch(self, chatml: Chat):
        source = (
            "{% for m in messages %}{% generation %}a{% generation %}{{ m.content }}{% endgeneration %}b"
            "{% endgeneration %}.{% endfor %}"
        )
        ids, mask = chatml.encode_one(talk("?", "!"), template=source)
        assert chatml.learned(ids, mask) == ["a?b", "a!b"]

    def test_another_field_may_hold_the_messages(self, chatml: Chat):
        assert self.learned(ChatFormat("chatml", "turns"), chatml.tokenizer, None) == "!<|im_end|>"

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (
                None,
                "no chat template lies beside the tokenizer .*, neither in chat_template.jinja nor in",
            ),
            ("absent.jinja", "chat template absent.jinja cannot be read"),
            ("{{ messages }}\n{% for m in messages %}", "chat template, line 2: "),
            ("{{ '\ufdd0' }}", "noncharacters"),
            ("{{ " + "-" * 3000 + "1 }}", "nested too far"),
            ("{% for m in messages %}" * 100 + "{% endfor %}" * 100, "nested too far"),
        ],
    )
    def test_a_missing_or_malformed_one_is_named(self, chatml: Chat, tmp_path: Path, source: str | None, message: str):
        with pytest.raises(ChatTemplateError, match=message):
            self.learned(ChatFormat(source), chatml.tokenizer, tmp_path)

    def test_the_built_in_one_needs_its_control_tokens(self, trained: Tokenizer):
        with pytest.raises(ChatTemplateError, match=r"needs the special tokens <\|im_end\|>, <\|im_start\|>"):
            self.learned(ChatFormat("chatml"), trained, None)
