"""Exact de-duplication: of documents with one id, that is with equal normalised text, the first stays.

The first in corpus order, which is by source and then by position: so what stays depends on no worker count and no
shard size. Only copies go; every text that was there is still there once.
"""

from dataclasses import dataclass
from pathlib import Path

from marin_zephyr.progress import Progress
from marin_zephyr.text.corpus import Size, open_corpus, open_session, written_size


@dataclass(frozen=True)
class ExactDedupReport:
    """What `exact_dedup` kept and dropped.

    Attributes:
        out_dir: the corpus written.
        kept: documents and bytes of the corpus written.
        dropped: documents and bytes of the copies left out.
    """

    out_dir: str
    kept: Size
    dropped: Size


def exact_dedup(
    in_dir: str | Path,
    out_dir: str | Path,
    *,
    workers: int = 2,
    work_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> ExactDedupReport:
    """Drops all but the first of equal texts.

    Args:
        in_dir: a corpus directory.
        out_dir: the corpus directory to write.
        workers: processes; 1 works in this process. The result is the same bytes whatever their number.
        work_dir: kept between runs, so that a later one goes on from there; by default a temporary directory.
        progress: is told how it goes; by default lines of the log.

    Raises:
        InputError: `in_dir` is no corpus, or an empty one.
    """
    corpus = open_corpus(in_dir)
    with open_session(workers=workers, work_dir=work_dir, progress=progress) as (session, _):
        distinct = corpus.dataset().distinct(on="id", keep="first")
        kept = written_size(session.run(distinct.write_parquet(out_dir), name="exact_dedup"))
    return ExactDedupReport(str(out_dir), kept=kept, dropped=corpus.size() - kept)
