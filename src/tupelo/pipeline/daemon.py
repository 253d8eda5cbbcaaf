"""The program from which Spark forks its Python workers: `spark.python.daemon.module`.

Spark closes the connections of workers that were idle for a minute, and of those that it no longer
needs. Such a worker cannot send its last bytes, and Spark's own daemon prints a traceback of that.
"""

from __future__ import annotations

from socket import socket

from pyspark import daemon

_serve = daemon.worker


def worker(sock: socket, authenticated: bool) -> int:
    """Serve a connection until it ends. Returns the exit code."""
    try:
        return _serve(sock, authenticated)
    except ConnectionError:
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
