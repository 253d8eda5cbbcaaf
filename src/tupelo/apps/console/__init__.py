"""The console of a host: a page to watch and use its spaces, and an HTTP API below it.

`Console(host.url)` starts both. See docs/CONSOLE.md.
"""

from tupelo.apps.console.server import Console

__all__ = ["Console"]
