"""The soak: a steady load for a long time, and whether anything grows or slows down.

`python3 dev.py soak --help` runs it.
"""
