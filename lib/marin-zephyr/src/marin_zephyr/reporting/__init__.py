"""What people are told: of a plan before it runs, and of a run when it is done.

- `reports`     what a run did: a table, JSON, and what a manifest keeps of it
- `refusals`    what was refused, by the kind of reason, and how much of it is too much
- `skew`        hot keys: which hold more than a twentieth of the rows of an exchange
- `explaining`  a plan as it would run now
- `reasons`     why a stage runs though an earlier run committed one of that name
- `labels`      functions and operations by name
- `quantities`  bytes, durations and texts that fit a line
"""
