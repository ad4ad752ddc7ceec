"""What the handlers of all recovery scripts do: say when they start. Imported from beside them."""

import os
import time
from pathlib import Path


def is_first_run(file: str) -> bool:
    """Write down that a run has begun; true if it is the first one, which is to hold its job."""
    with Path(file).open("a+") as record:
        record.write(f"{time.time_ns()} {os.getpid()}\n")
        record.flush()
        record.seek(0)
        return len(record.readlines()) == 1
