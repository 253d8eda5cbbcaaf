"""LIME: Linda in a Mobile Environment; the door with the words of Murphy, Picco and Roman.

| LIME                               | Tupelo                                                     |
| ---------------------------------- | ---------------------------------------------------------- |
| host, LimeServer                   | a host, and all that its group reaches: Host               |
| mobile agent, stationary agent     | Host.load(class), Host.agent(name)                         |
| loading at a remote host           | Host.load_at(host, class): that host must know the class   |
| interface tuple space (ITS)        | LimeTupleSpace(name): private until set_shared(True)       |
| host-level tuple space             | the space of that name at the host                         |
| ITupleSpace and its adapters       | TupleEngine, Host(engine=)                                 |
| federated tuple space              | the spaces of that name of all hosts of the group          |
| tuple, template                    | entry, template (formals are types, actuals are values)    |
| out(t), out[λ](t)                  | out(t), out(t, destination): written to that agent         |
| in, rd, inp, rdp, ing, rdg         | in_, rd (wait for ever, or wait=), inp, rdp, ing, rdg      |
| current and destination [ω, λ]     | current=, destination= (UNSPECIFIED if left out)           |
| AgentLocation, HostLocation        | the id of an agent, the id of a host                       |
| misplaced tuple                    | an entry whose agent is away; it goes there when it comes  |
| engagement, disengagement          | a new membership, installed in one step at all hosts       |
| strong reaction                    | a function inside the atomic step, at one host             |
| weak reaction                      | a function after it, for entries of any host               |
| ONCEPERTUPLE, ONCE                 | ONCE_PER_TUPLE, ONCE                                       |
| ReactionListener.reactsTo(e)       | a function of a ReactionEvent, or an object's reacts_to(e) |
| LimeSystem                         | LimeSystemTupleSpace: hosts and agents, also departed ones |
| setShared(lts[], b)                | set_shared(spaces, b)                                      |
| migration                          | Agent.migrate(host): state and spaces move, code does not  |

Where the paper leaves a choice, or its implementation stops short: of several matches the oldest
here comes first, then those elsewhere; probes and bulk operations reach the whole federated space
and say what they saw of it in one membership; a strong listener acts, and registers and removes
reactions, by `event.step`; enabling a reaction again forgets what it has reacted to (section 3.2);
if an entry was written by another door than this one, its source is its host.
"""

from tupelo.models.lime.agent import Agent
from tupelo.models.lime.engine import EngineFactory, TupleEngine
from tupelo.models.lime.host import Host
from tupelo.models.lime.locations import UNSPECIFIED, AgentLocation, HostLocation
from tupelo.models.lime.packages import AgentPackages, sign_package
from tupelo.models.lime.reactions import (
    ONCE,
    ONCE_PER_TUPLE,
    LocalizedReaction,
    Reaction,
    ReactionEvent,
    RegisteredReaction,
    UbiquitousReaction,
)
from tupelo.models.lime.tuplespace import LimeSystemTupleSpace, LimeTupleSpace, set_shared

__all__ = [
    "Agent",
    "AgentLocation",
    "AgentPackages",
    "EngineFactory",
    "Host",
    "HostLocation",
    "LimeSystemTupleSpace",
    "LimeTupleSpace",
    "LocalizedReaction",
    "ONCE",
    "ONCE_PER_TUPLE",
    "Reaction",
    "ReactionEvent",
    "RegisteredReaction",
    "TupleEngine",
    "UNSPECIFIED",
    "UbiquitousReaction",
    "set_shared",
    "sign_package",
]
