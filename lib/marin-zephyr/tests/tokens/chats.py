"""Small chat templates in the formats of well-known models, and tokenizers that have their control tokens."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from marin_zephyr.tokens import Tokenizer, load_tokenizer


class Format(NamedTuple):
    """A model's chat format.

    ``ends`` is what the assistant says behind its words; ``strips`` names tokens that swallow the white space after them.
    """

    template: str
    special: tuple[str, ...]
    eos: str
    bos: str | None = None
    ends: str = ""
    strips: tuple[str, ...] = ()
    has_system: bool = True


CHATML = Format(
    template="""\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}""",
    special=("<|im_start|>", "<|im_end|>"),
    eos="<|im_end|>",
    ends="<|im_end|>",
)

LLAMA = Format(
    template="""\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" + system + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}""",
    special=("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    eos="<|eot_id|>",
    bos="<|begin_of_text|>",
    ends="<|eot_id|>",
)

GEMMA = Format(
    template="""\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}\
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    special=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    eos="<eos>",
    bos="<bos>",
    ends="<end_of_turn>",
    has_system=False,
)

MISTRAL = Format(
    template="""\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}""",
    special=("<s>", "</s>", "[INST]", "[/INST]"),
    eos="</s>",
    bos="<s>",
    ends="</s>",
    has_system=False,
)

ZEPHYR = Format(
    template="""\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n' + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    special=("<s>", "</s>"),
    eos="</s>",
    bos="<s>",
    ends="</s>",
)

PHI = Format(
    template="""\
{% for message in messages %}{{ '<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>' + '\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    special=("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    eos="<|endoftext|>",
    ends="<|end|>",
    strips=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
)

FORMATS = {
    "chatml": CHATML,
    "llama": LLAMA,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "zephyr": ZEPHYR,
    "phi": PHI,
}


def chat_tokenizer(base: Tokenizer, form: Format, directory: Path) -> Tokenizer:
    """``base`` with a format's control tokens, saved in ``directory`` together with its template."""
    backend = Backend.from_str(base.content.decode())
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True, rstrip=token in form.strips) for token in form.special]
    )
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    config: dict[str, Any] = {"eos_token": form.eos, "bos_token": form.bos, "chat_template": form.template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(directory)
