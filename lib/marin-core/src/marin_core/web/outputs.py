"""What a step produced, shown: samples, texts and pictures, and the list of its files.

Only what is small and of a kind a reader looks at is inlined; the rest is listed with its size. Pictures, SVG too, go
into ``<img>`` as data, where a browser runs no script of theirs. Reading is `files`' business: contained and bounded.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from marin_core.quantities import format_bytes, format_count
from marin_core.records import NodeRecord
from marin_core.web.files import FoundFile, UnreadableFileError
from marin_core.web.markup import Markup, element, note
from marin_core.web.view import RunView, output_directory

_SAMPLES = "samples.json"
_MAX_TEXT_BYTES = 64_000
_MAX_IMAGE_BYTES = 1_000_000
_MAX_SAMPLES_BYTES = 1_000_000
_MAX_SAMPLES = 40
_MAX_SHOWN = 12
_MAX_LISTED = 60

_TEXTS = frozenset({".txt", ".md"})
_IMAGES = {".png": ("image/png", b"\x89PNG\r\n\x1a\n"), ".svg": ("image/svg+xml", b"")}


def render_outputs(view: RunView, index: int) -> Markup | None:
    """The showable files of a step's committed output; None when there are none."""
    node = view.record.nodes[index]
    showable = [file for file in view.outputs.get(index, ()) if _is_showable(file)]
    if not showable:
        return None
    shown = [_show(view, node, file) for file in showable[:_MAX_SHOWN]]
    more = len(showable) - len(shown)
    return element(
        "div", shown, note(f"Only listed: {format_count(more, 'more file')} of this kind.") if more else None
    )


def render_file_list(view: RunView, index: int) -> Markup | None:
    """Names and sizes of the files of a step's committed output; None where nothing was looked at."""
    if index in view.missing:
        return note(view.missing[index])
    files = view.outputs.get(index)
    if not files:
        return None
    rows = [
        element(
            "tr", element("td", element("code", file.path)), element("td", format_bytes(file.size), class_="number")
        )
        for file in files[:_MAX_LISTED]
    ]
    more = note(format_count(len(files) - _MAX_LISTED, "more file")) if len(files) > _MAX_LISTED else None
    return element("div", element("table", element("tbody", rows), class_="data"), more)


def render_samples(samples: Iterable[object]) -> Markup:
    """Generated text: each continuation after its prompt."""
    items = [
        element("li", element("span", str(sample.get("prompt", "")), class_="prompt"), str(sample.get("text", "")))
        for sample in list(samples)[:_MAX_SAMPLES]
        if isinstance(sample, Mapping)
    ]
    return element("ol", items, class_="samples")


def _is_showable(file: FoundFile) -> bool:
    path = PurePosixPath(file.path)
    suffix = path.suffix.lower()
    # What lies deeper is the inside of something (a checkpoint, a store), not written for a reader.
    return len(path.parts) <= 2 and (path.name == _SAMPLES or suffix in _TEXTS or suffix in _IMAGES)


def _show(view: RunView, node: NodeRecord, file: FoundFile) -> Markup:
    path = f"{output_directory(node)}/{file.path}"
    suffix = PurePosixPath(file.path).suffix.lower()
    try:
        if PurePosixPath(file.path).name == _SAMPLES:
            body = _samples(view.files.embed(path, max_bytes=_MAX_SAMPLES_BYTES))
        elif suffix in _TEXTS:
            text = view.files.embed(path, max_bytes=_MAX_TEXT_BYTES).decode("utf-8", errors="replace")
            body = element("pre", text.replace("\r\n", "\n"), tabindex=0)
        else:
            body = _image(view.files.embed(path, max_bytes=_MAX_IMAGE_BYTES), suffix=suffix, name=file.path)
    except UnreadableFileError as e:
        body = note(str(e))
    return element("figure", element("figcaption", element("code", file.path)), body, class_="output")


def _samples(data: bytes) -> Markup:
    try:
        samples = json.loads(data)
    except (ValueError, RecursionError) as e:
        return note(f"not readable as JSON ({e})")
    if not isinstance(samples, list) or not all(isinstance(s, Mapping) and "text" in s for s in samples):
        return note('expected a list of {"prompt": …, "text": …}')
    more = len(samples) - _MAX_SAMPLES
    return element("div", render_samples(samples), note(format_count(more, "more sample")) if more > 0 else None)


def _image(data: bytes, *, suffix: str, name: str) -> Markup:
    kind, signature = _IMAGES[suffix]
    if not data.startswith(signature):
        return note(f"{name} is not a {suffix[1:].upper()} image")
    return element("img", src=f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}", alt=name)
