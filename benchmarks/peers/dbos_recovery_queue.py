"""DBOS: a workflow that the first run holds for ever.

Run as ``URL FILE enqueue`` and ``URL FILE work``. Without its paid Conductor a workflow is
recovered by a process with the same executor id when that process starts.
"""

import logging
import sys
import time
from pathlib import Path

from dbos import DBOS
from held_job import is_first_run

url, file, act = sys.argv[1:4]
DBOS(config={"name": "recovery", "system_database_url": url, "log_level": "ERROR"})


@DBOS.workflow()
def hold() -> None:
    if is_first_run(file):
        time.sleep(3600)


logging.disable(logging.CRITICAL)
DBOS.launch()
if act == "enqueue":
    DBOS.destroy()
else:
    if not Path(file).exists():
        DBOS.start_workflow(hold)
    time.sleep(3600)
