"""Publish-subscribe-collect: the door with the words of Ceriotti, Murphy and Picco.

| the paper                  | Tupelo                                                            |
| -------------------------- | ----------------------------------------------------------------- |
| broker, node               | host; brokers of one name are one, where hosts reach each other   |
| publish(message)           | publish(update)                                                   |
| subscribe(pattern)         | subscribe(pattern): replies, each with one update                 |
| unsubscribe                | cancel()                                                          |
| local state                | what is offered here: offer(entry), withdraw(template); or what   |
|                            | the function `state=` says                                        |
| state pattern              | template; or any value that `state=` and `matches=` understand    |
| state update               | the entry that is offered or published; or any such value         |
| empty                      | nothing matches; `state=` says []                                 |
| probing-collect, any, all  | collect(p, "probing", "any"), ... "all": what was collected       |
| single-collect, any, all   | collect(p, "single", "any"), ... "all": replies, until satisfied  |
| persistent-collect         | collect(p, "persistent", ...): replies, until cancelled           |
| cached *empty* (7.4)       | prune=True                                                        |

It stands on a host of either door, or on a connection to one (`PubSub(tupelo.connect(url))` is the
broker of that host); on one of the async door its operations are awaited. The tree of
brokers forms by itself from the hosts that are engaged, and mends itself when one leaves: who
cannot answer any more is named as lost.
"""

from tupelo.federation.brokers.broker import Collected, Reply
from tupelo.models.pubsub.door import PubSub, Replies

__all__ = ["Collected", "PubSub", "Replies", "Reply"]
