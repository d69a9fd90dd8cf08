"""The commands of tokens: ``train-tokenizer``, ``tokenize`` and ``inspect``."""

from __future__ import annotations

import shutil
from typing import Annotated, Literal

import tyro

from marin_zephyr.commands.console import Inputs, print_json, print_report, shown_progress, told_in_flags
from marin_zephyr.errors import UsageError

Store = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]


def train_tokenizer(
    inputs: Inputs,
    /,
    *,
    out: str,
    vocab_size: int = 8192,
    text_field: str = "text",
    special_token: tuple[str, ...] = ("<|endoftext|>",),
    max_bytes: int = 64 << 20,
    seed: int = 0,
    json: bool = False,
) -> int:
    """Trains a byte-level BPE tokenizer.

    Example: zephyr train-tokenizer corpus/ --vocab-size 8192 --out tokenizer.json

    Args:
        inputs: what `zephyr tokenize` reads: files, directories or globs.
        out: the tokenizer.json to write.
        vocab_size: ids in all.
        text_field: the column that holds the text.
        special_token: the special tokens, which get the first ids; the first of them ends a sequence.
        max_bytes: train on a sample of so many bytes of text.
        seed: chooses the sample.
        json: print the report as JSON.
    """
    from marin_zephyr.tokens import train_tokenizer

    report = train_tokenizer(
        list(inputs),
        out,
        vocab_size=vocab_size,
        text_field=text_field,
        special_tokens=special_token,
        max_bytes=max_bytes,
        seed=seed,
    )
    return print_report(report, out, json=json)


def tokenize(
    inputs: Inputs,
    /,
    *,
    tokenizer: str,
    out: str,
    text_field: str = "text",
    append_eos: bool = True,
    prepend_bos: bool = False,
    part_tokens: int = 1 << 26,
    on_error: Literal["raise", "skip", "quarantine"] = "raise",
    max_bad: float | None = None,
    chat: bool = False,
    chat_template: str | None = None,
    messages_field: str | None = None,
    prompt_field: str | None = None,
    completion_field: str | None = None,
    workers: int | None = None,
    engine: Literal["auto", "tokenizers", "gigatoken"] = "auto",
    json: bool = False,
) -> int:
    """Encodes documents into a token store.

    Example: zephyr tokenize corpus/ --tokenizer tokenizer.json --out tokens/ --on-error quarantine

    Args:
        inputs: files of any format, directories, globs or URLs.
        tokenizer: a tokenizer.json, a directory with one, a name on the hub (owner/name; extra `hf`), or `bytes`.
        out: the store to write.
        text_field: the column that holds the text.
        append_eos: end each document with the id that ends a sequence.
        prepend_bos: begin each document with the id that begins one.
        part_tokens: a part of the store holds about so many ids; a killed run loses at most one.
        on_error: what becomes of a record that cannot be taken; quarantine keeps it, with its reason, in OUT/rejects.
        max_bad: how many of them fail the run: more than a number (100) or than a share (0.01).
        chat: rows are conversations; what the assistant says counts in the loss.
        chat_template: for conversations: a Jinja file, or `chatml`; by default the tokenizer's own.
        messages_field: for conversations: the column of messages; by default `messages`.
        prompt_field: rows are prompts with completions, of which the completion counts in the loss: the column.
        completion_field: likewise.
        workers: threads that encode; by default one a CPU.
        engine: `auto` takes gigatoken (extra `fast`) where it gives the ids of tokenizers; the ids are the same.
        json: print the report as JSON.
    """
    from marin_zephyr.tokens import ChatFormat, CompletionFormat, tokenize

    is_chat = chat or chat_template is not None or messages_field is not None
    is_completion = prompt_field is not None or completion_field is not None
    if is_chat and is_completion:
        raise UsageError("rows are conversations or prompts with completions: name the fields of one of them")
    supervised: ChatFormat | CompletionFormat | None = None
    if is_chat:
        supervised = ChatFormat(template=chat_template, messages_field=messages_field or "messages")
    elif is_completion:
        supervised = CompletionFormat(prompt_field or "prompt", completion_field or "completion")
    with told_in_flags():
        report = tokenize(
            list(inputs),
            out,
            tokenizer=tokenizer,
            workers=workers,
            text_field=text_field,
            append_eos=append_eos,
            prepend_bos=prepend_bos,
            part_tokens=part_tokens,
            on_error=on_error,
            max_bad=max_bad,
            engine=engine,
            supervised=supervised,
            progress=shown_progress(),
        )
    return print_report(report, out, json=json)


def inspect(store: Store, /, *, verify: bool = False, token: int | None = None, json: bool = False) -> int:
    """Shows a token store: counts, where it came from, and a sample. Exit code 1 if --verify finds damage.

    Example: zephyr inspect s3://bucket/tokens --verify

    Args:
        store: a token store: its directory, or a URL.
        verify: read every byte, check it against the store's checksums, and the index and ids for sense.
        token: show where this token of the store is: its part, its document, the file that came from, the text around.
        json: print as JSON.
    """
    from marin_zephyr.tokens import TokenStore
    from marin_zephyr.tokens.inspection import describe, tell

    opened = TokenStore.open(store)
    damage = opened.verify(progress=shown_progress()) if verify else None
    facts = describe(opened, token=token, damage=damage)
    if json:
        print_json(facts)
    else:
        print(tell(facts, width=min(120, shutil.get_terminal_size().columns)))
        print(store)
    return 1 if facts.get("damage") else 0
