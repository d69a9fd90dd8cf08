"""A corpus that every machine makes alike: documents of paragraphs of Python's own standard library.

    python bench/flows/corpus.py OUT --megabytes 400 --shards 32

JSON lines with id, url, text and score, gzip level 6; 8% of documents repeat an earlier one of their shard exactly and
6% with 3% of the words replaced. Domains of the urls follow Zipf's law over 2,000 names. Seeds are fixed, so equal
Pythons make equal bytes. The last line printed is JSON: documents, bytes, copies.
"""

import argparse
import gzip
import json
import os
import random
import re
import sysconfig
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path

EXACT, NEAR, REPLACED = 0.08, 0.06, 0.03
NUM_DOMAINS = 2000


@cache
def paragraphs() -> list[str]:
    """Each paragraph of 80 to 4,000 characters once, in order of path."""
    found: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found.update(dict.fromkeys(p.rstrip() for p in re.split(r"\n\s*\n", text) if 80 <= len(p.rstrip()) <= 4000))
    return list(found)


def document(rng: random.Random, earlier: list[str]) -> tuple[str, str]:
    """A text, and what it is: new, a copy, or nearly one."""
    draw = rng.random()
    if earlier and draw < EXACT:
        return rng.choice(earlier), "exact"
    if earlier and draw < EXACT + NEAR:
        words = rng.choice(earlier).split(" ")
        for _ in range(max(1, int(len(words) * REPLACED))):
            words[rng.randrange(len(words))] = f"w{rng.randrange(1_000_000)}"
        return " ".join(words), "near"
    count = min(12, 1 + int(rng.lognormvariate(1.0, 0.8)))
    text = "\n\n".join(rng.choices(paragraphs(), k=count))
    if len(earlier) < 5000:
        earlier.append(text)
    return text, "new"


def write_shard(index: int, *, out: Path, num_bytes: int) -> dict[str, int]:
    """One file of about so many bytes."""
    rng = random.Random(20_000 + index)
    domains = [f"site{i:04d}.example.org" for i in range(NUM_DOMAINS)]
    weights = [1 / (i + 1) for i in range(NUM_DOMAINS)]
    earlier: list[str] = []
    counts = {"documents": 0, "bytes": 0, "exact": 0, "near": 0, "new": 0}
    with gzip.open(out / f"part-{index:05d}.jsonl.gz", "wb", compresslevel=6) as file:
        while counts["bytes"] < num_bytes:
            text, kind = document(rng, earlier)
            n = counts["documents"]
            url = f"https://{rng.choices(domains, weights)[0]}/page/{n}"
            row = {"id": f"{index:05d}-{n:07d}", "url": url, "text": text, "score": round(rng.random(), 6)}
            line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
            file.write(line)
            counts["documents"] += 1
            counts["bytes"] += len(line)
            counts[kind] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--shards", type=int, default=32)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    make = partial(write_shard, out=options.out, num_bytes=options.megabytes * 1_000_000 // options.shards)
    with Pool(os.cpu_count()) as pool:
        shards = pool.map(make, range(options.shards), chunksize=1)
    print(json.dumps({name: sum(shard[name] for shard in shards) for name in shards[0]}))


if __name__ == "__main__":
    main()
