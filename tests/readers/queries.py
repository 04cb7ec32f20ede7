# SPDX-License-Identifier: Apache-2.0
"""The queries of the researcher's guide, one per program that reads the dataset.

Payload of a job's iterations 10 to 19, by host.

python queries.py PROGRAM DATA JOB → one JSON object, bytes by host, on standard output
"""

import json
import sys


def duckdb(data: str, job: str) -> dict[str, int]:
    import duckdb

    rows = duckdb.sql(
        f"""
        SELECT host, sum(payload_bytes)::BIGINT
        FROM read_parquet('{data}/buckets/*/*/*.parquet', hive_partitioning = true, union_by_name = true)
        WHERE job = '{job}' AND iteration >= 10 AND iteration < 20
        GROUP BY host
        """
    ).fetchall()
    return dict(rows)


def pandas(data: str, job: str) -> dict[str, int]:
    import pandas as pd

    columns = ["host", "payload_bytes"]
    filters = [("job", "==", job), ("iteration", ">=", 10), ("iteration", "<", 20)]
    rows = pd.read_parquet(f"{data}/buckets", columns=columns, filters=filters)
    return rows.groupby("host", observed=True)["payload_bytes"].sum().to_dict()


def polars(data: str, job: str) -> dict[str, int]:
    import polars as pl

    rows = (
        pl.scan_parquet(f"{data}/buckets/*/*/*.parquet", hive_partitioning=True)
        .filter(pl.col("job").cast(pl.String) == job, pl.col("iteration").is_between(10, 19))
        .group_by(pl.col("host").cast(pl.String))
        .agg(pl.col("payload_bytes").sum())
        .collect()
    )
    return dict(rows.iter_rows())


def dask(data: str, job: str) -> dict[str, int]:
    import dask.dataframe as dd

    columns = ["host", "payload_bytes"]
    filters = [("job", "==", job), ("iteration", ">=", 10), ("iteration", "<", 20)]
    rows = dd.read_parquet(f"{data}/buckets", columns=columns, filters=filters)
    rows["host"] = rows["host"].astype(str)
    return rows.groupby("host")["payload_bytes"].sum().compute().to_dict()


def spark(data: str, job: str) -> dict[str, int]:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    rows = (
        session.read.parquet(f"{data}/buckets")
        .where(f"job = '{job}' AND iteration >= 10 AND iteration < 20")
        .groupBy("host")
        .sum("payload_bytes")
        .collect()
    )
    return {row[0]: row[1] for row in rows}


if __name__ == "__main__":
    program, data, job = sys.argv[1:]
    found = globals()[program](data, job)
    print(json.dumps({str(host): int(total) for host, total in found.items() if total}))
