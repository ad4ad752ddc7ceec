"""The chaos lab: a mixed load, processes and databases that fail, and one checker of what is left.

`python3 dev.py chaos --help` runs it. A run has a **site** (where the database is, and what can
break there), a **load** (handlers that write what they do to a ledger), **faults**, an **observer**
that samples the tables meanwhile, and a **checker** that knows nothing of pulsed: it reads the
tables by plain SQL, and the ledger.
"""
