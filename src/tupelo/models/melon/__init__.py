"""MELON, with the names of Justin Collins and Rajive Bagrodia.

| the dissertation                 | Tupelo                                                        |
| -------------------------------- | ------------------------------------------------------------- |
| Melon.new                        | Melon(host): a process, as is another Melon on the same host  |
| store(message, [address])        | store(message, to=identity)                                   |
| write(message)                   | write(message)                                                |
| take, read (template, block)     | take, read (template, wait=None); block = false is wait=0     |
| take_all, read_all               | take_all, read_all: a list, empty only after the timeout      |
| null                             | None                                                          |
| message store                    | the space `name` (take-only) and a companion (read-only)      |
| sparse bit set (5.7)             | roaring bitmaps by writer; only the changes in them are sent  |
| message replication (5.8)        | copies=Copies(hosts=2)                                        |
| garbage collection (5.9)         | bound=Bound(count=1_000), pin=True, unpin, `collected`        |

A message is taken by one process only. A Melon reads each message once, from the host of its writer
or from a copy. The messages of one host are read in the order in which they were written, and taken
in the order in which they were stored, whether for anyone or directed to this host. A waiting read
or take is woken by the message; it does not poll.

Choices that the dissertation leaves open: hosts that do not answer are skipped. A directed message
is encrypted for the identity of its addressee. Every host of this name that meets a carrier carries
it too, unless Copies(directed=2) limits that, and drops it when the addressee has confirmed it.
While a message is being delivered to a taker, other takers cannot see it; if the taker gives up or
is killed, the message returns to its place.
"""

from tupelo.models.melon.collecting import Bound, Collected, Copies
from tupelo.models.melon.door import Melon

__all__ = ["Bound", "Collected", "Copies", "Melon"]
