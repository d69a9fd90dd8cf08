"""The server: `marin serve`, a prefix read in a browser.

It only reads, answers only GET and HEAD, and holds no state but caches that a changed file invalidates, so that it may
be started, stopped and started again beside any number of runs. From the outside in: `command` (socket, URL, signals),
`guard` (what a request must be and what a response must say), `application` (which address leads to which page),
`catalogue` (records, read once for each version of their file), the pages (`listings`, `entries`, `comparison`, in the
frame of `frames`), `downloads` and `following` (bytes and growing logs).

Invariants: no byte from outside the prefix (`web.files`), and under it no byte but records, logs and outputs; nothing
shown can act (`web.markup` escapes it, `web.document`'s policy runs no script but ours); what cannot be read is said
in its place.
"""
