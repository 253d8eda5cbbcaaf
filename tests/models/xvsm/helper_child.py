"""A program that helps an ActiveCoordinator elsewhere, and never comes to the end of a task."""

from __future__ import annotations

import sys
import threading

from tests.models.xvsm import test_helpers
from tupelo.models.xvsm import Capi


class Endless:
    """A desk from which nobody is let go."""

    def wait(self, who: str) -> None:
        sys.stdout.write("computing\n")  # in one piece: print writes the end of the line by itself
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    test_helpers.desk = Endless()  # type: ignore[assignment]
    (uri,) = sys.argv[1:]
    with Capi(site=uri) as capi:
        capi.work_for(f"{uri}/sums", test_helpers.at_the_desk, workers=2)
        print("helping", flush=True)
        threading.Event().wait()
