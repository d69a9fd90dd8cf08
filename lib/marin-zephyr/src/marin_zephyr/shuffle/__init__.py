"""How rows change hands between stages, in bounded memory.

- `keys`     which keys are equal, which comes first, and which partition one belongs to
- `blocks`   the files in which rows change hands
- `runs`     rows sorted by their keys, on disk
- `merging`  sorted runs to one sorted stream
"""
