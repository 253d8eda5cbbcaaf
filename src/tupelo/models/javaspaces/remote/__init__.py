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

`hosting` serves a service at its host, `clients` has the clients of the three services, and `wire`
the encoding of arguments and answers. A lease is sent in seconds, which each end counts by its own
clock.
"""
