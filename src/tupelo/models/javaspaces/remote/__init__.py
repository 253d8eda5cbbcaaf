"""Jini services over the network: a host offers them, and programs elsewhere use them.

| Jini                                    | Tupelo                                                 |
| --------------------------------------- | ------------------------------------------------------ |
| exporting a service                     | offer(host, service)                                   |
| a proxy that a client downloads         | RemoteLookupService, RemoteEventMailbox,               |
|                                         | RemoteLeaseRenewalService: no code is sent             |
| the service object of a ServiceItem     | a value, such as a ServiceLocation: what a client      |
|                                         | needs to reach the service                             |
| unicast and multicast discovery         | LookupLocator("tupelo://host:7700"), LookupDiscovery   |
| a remote listener                       | a function of the client, which fetches the events     |

`hosting` serves a service at its host, by a table of its methods; `clients` has what all clients
have in common, and `services` the three of them; `wire` says how arguments and answers are sent. A
lease that a host grants is a number of seconds: each end counts them by its own clock.
"""
