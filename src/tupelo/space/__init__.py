"""The rules of one space: a pure core, and two thin shells on it, blocking and async.

Start with `core`: it decides, in one step at a time, and says what happened (`changes`) and whom
to wake (`woken`). `transaction`, `reaction`, `subscription`, `session`, `capacity`, `deadlines`
and `order` hold one rule each. `engine` runs the core under a lock and serves both doors:
`blocking` for threads and `asynchronous` for coroutines.
"""
