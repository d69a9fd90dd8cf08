"""Text preparation: raw files to the documents a model is trained on.

- `normalize`      raw files to a corpus: one schema, stable ids, rejects kept with reasons (`normalization`)
- `exact_dedup`    of equal texts the first stays (`exact`)
- `fuzzy_dedup`    of nearly equal texts the longest stays (`fuzzy`; `sketches` by `ngrams` and `minhash`; `clusters`)
- `decontaminate`  texts that share n-grams with evaluation sets go (`decontamination`; `evaluations`; `contamination`)
- `quality_filter` texts that break published rules of quality go (`quality`; `measures`)
- `split`          train and validation by a hash of the document's id (`splitting`)

Each reads a corpus directory (`corpus`), writes another, and returns a report of what it kept and dropped. The same
inputs give the same bytes whatever the number of workers, and a run that was killed continues where it stopped.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marin_zephyr.text.corpus import Size
    from marin_zephyr.text.decontamination import DecontaminationReport, EvaluationReport, decontaminate
    from marin_zephyr.text.exact import ExactDedupReport, exact_dedup
    from marin_zephyr.text.fuzzy import FuzzyDedupReport, fuzzy_dedup
    from marin_zephyr.text.normalization import NormalizeReport, normalize
    from marin_zephyr.text.quality import QualityReport, Rule, quality_filter
    from marin_zephyr.text.splitting import SplitReport, split

__all__ = [
    "DecontaminationReport",
    "EvaluationReport",
    "ExactDedupReport",
    "FuzzyDedupReport",
    "NormalizeReport",
    "QualityReport",
    "Rule",
    "Size",
    "SplitReport",
    "decontaminate",
    "exact_dedup",
    "fuzzy_dedup",
    "normalize",
    "quality_filter",
    "split",
]

_LAZY = {
    "DecontaminationReport": "decontamination",
    "EvaluationReport": "decontamination",
    "ExactDedupReport": "exact",
    "FuzzyDedupReport": "fuzzy",
    "NormalizeReport": "normalization",
    "QualityReport": "quality",
    "Rule": "quality",
    "Size": "corpus",
    "SplitReport": "splitting",
    "decontaminate": "decontamination",
    "exact_dedup": "exact",
    "fuzzy_dedup": "fuzzy",
    "normalize": "normalization",
    "quality_filter": "quality",
    "split": "splitting",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
