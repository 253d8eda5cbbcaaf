"""One Spark for all tests that need it: it takes longer to start than they take to run."""

from importlib import import_module

import pytest

import_module("pandas")  # before a statement by DuckDB keeps it out of the process


@pytest.fixture(scope="session")
def spark():
    from tupelo.pipeline import session

    options: dict[str, str | int | bool] = {
        "spark.sql.shuffle.partitions": 2,
        "spark.default.parallelism": 2,
        "spark.sql.adaptive.enabled": False,
        "spark.driver.memory": "1g",
    }
    made = session("local[2]", **options)
    yield made
    made.stop()
