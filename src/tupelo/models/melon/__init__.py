"""MELON: the door with the words of Justin Collins and Rajive Bagrodia.

| the dissertation                 | Tupelo                                                        |
| -------------------------------- | ------------------------------------------------------------- |
| Melon.new                        | Melon(host): a process, as is another Melon on the same host  |
| store(message, [address])        | store(message, to=identity)                                   |
| write(message)                   | write(message)                                                |
| take, read (template, block)     | take, read (template, wait=None); block = false is wait=0     |
| take_all, read_all               | take_all, read_all: a list, of at least one unless time is up |
| null                             | None                                                          |
| message store                    | the space `name` (take-only) and a companion (read-only)      |
| sparse bit set (5.7)             | roaring bitmaps by writer; what is new in them is told        |
| message replication (5.8)        | copies=Copies(hosts=2)                                        |
| garbage collection (5.9)         | bound=Bound(count=1_000), pin=True, unpin, `collected`        |

What is taken is given to nobody else, and what was read is not read again by the same Melon, be it
from where it was written or from a copy. Of one host's messages the oldest that can be had comes
first: of those that were written, and of those that were stored, for anyone or for us. Who waits is
woken by the message it waits for.

Where the dissertation leaves a choice: a host that does not answer is passed over; what is directed
is sealed for an identity, whoever carries it; it is carried by every host of this name that meets
one who has it, unless Copies(directed=2) says otherwise, and let go when its addressee says that it
has it. What is under way to one who takes it is not there for others; if that one gives up or is
killed, it goes back to its place.
"""

from tupelo.models.melon.collecting import Bound, Collected
from tupelo.models.melon.copying import Copies
from tupelo.models.melon.door import Melon

__all__ = ["Bound", "Collected", "Copies", "Melon"]
