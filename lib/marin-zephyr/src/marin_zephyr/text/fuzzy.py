"""Fuzzy de-duplication: documents that share most of their word n-grams are one document, and the longest stays.

Four passes:

1. *Sketch*, on workers: every text becomes its band keys (`sketches`).
2. *Gather*, on workers: of the documents that share a band key with another, the candidates, every text becomes the
   set of its n-gram hashes. Candidates are found here, a band at a time.
3. *Decide*, here: whole n-gram sets decide between candidates (`clusters`). In memory are the sketches of candidates
   and, component after component, their sets, `MAX_HASHES` hashes at a time.
4. *Write*, on workers: the corpus without the dropped documents, in its order.

No text is moved or kept in between. The passes on workers are committed and not repeated by a later run.
``_duplicates/duplicates.parquet`` in the output names every near-duplicate that was dropped, the kept one, and how
alike they are. Of copies, documents with one id, the first stands for all, and the others go unnamed as they do in
`exact_dedup`.

Invariant: which documents stay is a function of the set of documents: of no file order, shard size or worker count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from numpy.typing import NDArray

from marin_zephyr.durability import new_file
from marin_zephyr.errors import UsageError
from marin_zephyr.progress import Progress
from marin_zephyr.text.clusters import Decision, components, decide
from marin_zephyr.text.corpus import Size, drop_ids, open_corpus, open_session, written_size
from marin_zephyr.text.lookups import encode_ids, write_lookup
from marin_zephyr.text.minhash import Banding, choose_banding
from marin_zephyr.text.sketches import Candidates, candidate_sets, find_candidates, load_sets, sketch

# N-gram hashes of candidates in memory at a time: 512 MiB of them.
MAX_HASHES = 1 << 26


@dataclass(frozen=True)
class FuzzyDedupReport:
    """What `fuzzy_dedup` kept and dropped, and how it came to that.

    Attributes:
        out_dir: the corpus written.
        kept: documents and bytes of the corpus written.
        dropped: documents and bytes of the copies and near-duplicates left out.
        num_clusters: kept documents for which at least one other was dropped.
        num_candidates: documents that share a band key with another.
        num_compared: pairs of candidates whose whole n-gram sets were compared.
        num_similar: of these, the pairs at or above the threshold.
    """

    out_dir: str
    kept: Size
    dropped: Size
    num_clusters: int
    num_candidates: int
    num_compared: int
    num_similar: int


def fuzzy_dedup(
    in_dir: str | Path,
    out_dir: str | Path,
    *,
    ngram: int = 5,
    num_permutations: int = 128,
    threshold: float = 0.8,
    recall: float = 0.995,
    workers: int = 2,
    work_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> FuzzyDedupReport:
    """Drops copies, and documents that are nearly the same as one that stays.

    Args:
        in_dir: a corpus directory; without copies, as `exact_dedup` writes it, the texts are written once less.
        out_dir: the corpus directory to write.
        ngram: words in an n-gram.
        num_permutations: places in a MinHash signature.
        threshold: the Jaccard index of two n-gram sets from which the shorter text is dropped, in (0, 1].
        recall: the probability of finding a pair exactly at the threshold; more similar pairs are missed less often.
        workers: processes; 1 works in this process. The result is the same bytes whatever their number.
        work_dir: where sketches and sets are kept, so that a later run goes on from there; by default a temporary
            directory.
        progress: is told how it goes; by default lines of the log.

    Raises:
        InputError: `in_dir` is no corpus, or an empty one.
        UsageError: an argument is out of range.
    """
    banding = _check(ngram=ngram, num_permutations=num_permutations, threshold=threshold, recall=recall)
    corpus = open_corpus(in_dir)
    texts = corpus.dataset("id", "text", "num_bytes")
    to_sketches = partial(sketch, ngram=ngram, num_permutations=num_permutations, banding=banding)
    with open_session(workers=workers, work_dir=work_dir, progress=progress) as (session, work):
        # Hashes do not compress.
        sketched = texts.map_batches(to_sketches, batch_format="arrow").write_parquet(
            work / "sketches", compression="none"
        )
        session.run(sketched, name="fuzzy_dedup: sketch")
        candidates = find_candidates(work / "sketches", banding=banding)
        grouped = components(candidates.labels, preferred=candidates.preferred())
        decisions: list[Decision] = []
        if grouped:
            ids = write_lookup(encode_ids(candidates.ids), directory=work)
            to_sets = partial(candidate_sets, candidates=ids, ngram=ngram)
            sets = texts.map_batches(to_sets, batch_format="arrow").write_parquet(work / "sets", compression="none")
            session.run(sets, name="fuzzy_dedup: gather")
            decisions += _decide_all(grouped, candidates, sets=work / "sets", threshold=threshold)
        duplicates = _duplicates(decisions, candidates)
        stays = corpus.dataset()
        if len(duplicates):
            dropped = write_lookup(encode_ids(duplicates["id"]), directory=work)
            stays = stays.map_batches(partial(drop_ids, dropped=dropped))
        distinct = stays.distinct(on="id") if candidates.num_copies else stays
        written = session.run(distinct.write_parquet(out_dir), name="fuzzy_dedup: write")
    kept = written_size(written)
    with new_file(Path(out_dir) / "_duplicates" / "duplicates.parquet") as path:
        pq.write_table(duplicates.to_arrow(), path, compression="zstd")
    return FuzzyDedupReport(
        str(out_dir),
        kept=kept,
        dropped=corpus.size() - kept,
        num_clusters=duplicates["kept_id"].n_unique(),
        num_candidates=len(candidates.ids),
        num_compared=sum(decision.num_compared for decision in decisions),
        num_similar=sum(decision.num_similar for decision in decisions),
    )


def _check(*, ngram: int, num_permutations: int, threshold: float, recall: float) -> Banding:
    """The banding for these arguments, or a `UsageError` that names the wrong one."""
    if ngram < 1:
        raise UsageError(f"ngram = {ngram}: an n-gram has at least one word")
    if num_permutations < 1:
        raise UsageError(f"num_permutations = {num_permutations}: must be at least 1; 128 serve most corpora")
    if not 0.0 < threshold <= 1.0:
        raise UsageError(f"threshold = {threshold}: must be above 0 and at most 1")
    if not 0.0 < recall < 1.0:
        raise UsageError(f"recall = {recall}: must be above 0 and below 1")
    try:
        return choose_banding(num_permutations, threshold, recall=recall)
    except ValueError as e:
        raise UsageError(str(e)) from None


def _decide_all(
    grouped: Sequence[NDArray], candidates: Candidates, *, sets: Path, threshold: float
) -> Iterator[Decision]:
    for wave in waves(grouped, candidates.num_ngrams, limit=MAX_HASHES):
        loaded = load_sets(sets, np.concatenate(wave))
        for component in wave:
            yield decide(component, bands=candidates.bands, sets=loaded, threshold=threshold)


def waves(components: Sequence[NDArray], num_ngrams: NDArray[np.int64], *, limit: int) -> Iterator[list[NDArray]]:
    """Gathers components, in order, until their n-gram sets reach the limit; a component beyond it goes alone."""
    wave: list[NDArray] = []
    held = 0
    for component in components:
        size = int(num_ngrams[component].sum())
        if wave and held + size > limit:
            yield wave
            wave, held = [], 0
        wave.append(component)
        held += size
    if wave:
        yield wave


def _duplicates(decisions: Sequence[Decision], candidates: Candidates) -> pl.DataFrame:
    """One row a dropped document: who it was, who stays for it, how alike they are, and its bytes."""
    duplicates = [duplicate for decision in decisions for duplicate in decision.duplicates]
    dropped = np.array([d.dropped for d in duplicates], dtype=np.int64)
    kept = np.array([d.kept for d in duplicates], dtype=np.int64)
    return pl.DataFrame(
        {
            "id": candidates.ids[dropped],
            "kept_id": candidates.ids[kept],
            "similarity": np.array([d.similarity for d in duplicates], dtype=np.float64),
            "containment": np.array([d.containment for d in duplicates], dtype=np.float64),
            "num_bytes": candidates.num_bytes[dropped],
        }
    )
