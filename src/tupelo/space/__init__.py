"""The rules of one space: a core without I/O, and a blocking and an async API on it.

Start with `core`: it executes one atomic step at a time, and reports the changes and the callers to
wake. `transaction`, `reaction`, `subscription`, `session`, `capacity`, `leases` and `order` have
one rule each. `engine` runs the core under a lock; `blocking` is the API for threads,
`asynchronous` the one for coroutines.
"""
