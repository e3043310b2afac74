"""The sans-I/O core of the client, for drivers: the protocol's state machine without sockets, clocks, threads or event
loops.

| module | what it decides |
| --- | --- |
| `session` | `ClientCore`, the state machine of one client; begin here |
| `events` | the events that a driver gives to `ClientCore.step`, and the effects that it returns |
| `failover` | which server to try next and when; moves that a broker asks for |
| `servers` | the server list: weights, blacklist, backoff |
| `subscriptions` | positions, gaps and duplicates of each topic; subscribe requests that await their receipts |
| `publishing` | QoS 1 publications that await their answers; when they are sent again |
| `links` | what all drivers share about a connection: filling frames, describing how a connection ended |
| `settings` | limits and times, each with its reason |

The drivers do the I/O: `migratory_client.driver` on asyncio and aiohttp, `migratory_loadtest.client` on bare asyncio
protocols for thousands of clients in a process, and the simulation on virtual time. This package imports none of them.
Importing it chooses between the compiled and the interpreted form of these modules (`migratory_compiled`).
"""

from migratory_compiled import activate

activate()
