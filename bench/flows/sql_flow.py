"""The same work in engines that run expressions on threads: Polars and DuckDB, two threads each.

    POLARS_MAX_THREADS=2 python bench/flows/sql_flow.py polars map CORPUS OUT

One line of JSON: ``seconds`` is ``[wall, CPU]``, imports excepted.
"""

import argparse
import json
import os
import time
from pathlib import Path


def with_polars(task: str, files: str, out: Path) -> float:
    import polars as pl

    began = time.perf_counter()
    documents = pl.scan_ndjson(files)
    if task == "map":
        words = pl.col("text").str.count_matches(r"\S+")
        documents.with_columns(num_words=words).filter(pl.col("num_words") >= 50).sink_parquet(
            out / "map.parquet", compression="snappy"
        )
    elif task == "group":
        documents.group_by(pl.col("url").str.split("/").list.get(2)).len().sink_parquet(out / "group.parquet")
    else:
        documents.unique(subset=["text"], keep="any").sink_parquet(out / "distinct.parquet", compression="snappy")
    return began


def with_duckdb(task: str, files: str, out: Path) -> float:
    import duckdb  # type: ignore[import-not-found]

    began = time.perf_counter()
    connection = duckdb.connect()
    connection.execute("SET threads=2; SET enable_progress_bar=false")
    columns = "{'id': 'VARCHAR', 'url': 'VARCHAR', 'text': 'VARCHAR', 'score': 'DOUBLE'}"
    source = f"read_json('{files}', format='newline_delimited', columns={columns})"
    words = "len(string_split_regex(trim(text), '\\s+'))"
    query = {
        "map": f"SELECT * FROM (SELECT *, {words} num_words FROM {source}) WHERE num_words >= 50",
        "group": f"SELECT split_part(url, '/', 3) domain, count(*) n FROM {source} GROUP BY 1",
        "distinct": f"SELECT any_value(id), any_value(url), text, any_value(score) FROM {source} GROUP BY text",
    }[task]
    connection.execute(f"COPY ({query}) TO '{out / 'out.parquet'}' (FORMAT parquet)")
    return began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["polars", "duckdb"])
    parser.add_argument("task", choices=["map", "group", "distinct"])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    before = sum(os.times()[:4])
    engine = with_polars if options.engine == "polars" else with_duckdb
    began = engine(options.task, str(options.corpus / "*.jsonl.gz"), options.out)
    print(json.dumps({"seconds": [time.perf_counter() - began, sum(os.times()[:4]) - before]}))


if __name__ == "__main__":
    main()
