"""What is wrong with files, and where.

- `doctor`    reads files to the end with the readers themselves, and holds them against each other
- `oddities`  what is unusual about a file's bytes and read all the same
- `kinds`     where a column first holds a value of which kind
"""
