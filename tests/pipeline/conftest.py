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
        # To compile a query takes longer than to run it on a few rows.
        "spark.sql.codegen.wholeStage": False,
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.memory": "1g",
        # For the server of Spark Connect, if a test starts it.
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": 0,
    }
    made = session("local[2]", **options)
    yield made
    made.stop()
