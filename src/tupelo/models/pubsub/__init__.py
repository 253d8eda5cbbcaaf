"""Publish-subscribe-collect, with the names of Ceriotti, Murphy and Picco.

| the paper                  | Tupelo                                                            |
| -------------------------- | ----------------------------------------------------------------- |
| broker, node               | host; the brokers of one name in a group work together            |
| publish(message)           | publish(update)                                                   |
| subscribe(pattern)         | subscribe(pattern): replies, each with one update                 |
| unsubscribe                | cancel()                                                          |
| local state                | the offered entries: offer(entry), withdraw(template); or what    |
|                            | the function `state=` returns                                     |
| state pattern              | template; or any value that `state=` and `matches=` understand    |
| state update               | the entry that is offered or published; or any such value         |
| empty                      | nothing matches; `state=` returns []                              |
| probing-collect, any, all  | collect(p, "probing", "any"), ... "all": what was collected       |
| single-collect, any, all   | collect(p, "single", "any"), ... "all": replies, until satisfied  |
| persistent-collect         | collect(p, "persistent", ...): replies, until cancelled           |
| cached *empty* (7.4)       | prune=True                                                        |

A PubSub is opened on a host, or on a connection to a host (`PubSub(tupelo.connect(url))` is the
broker of that host); at the async door its operations are awaited. The tree of brokers forms from
the linked hosts, and is repaired when one leaves: hosts that cannot answer are reported as lost.
"""

from tupelo.federation.brokers.broker import Collected, Reply
from tupelo.models.pubsub.door import PubSub, Replies

__all__ = ["Collected", "PubSub", "Replies", "Reply"]
