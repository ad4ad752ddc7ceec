"""DBOS: the steps of one workflow, one after the other."""

import importlib.metadata
import json
import logging
import sys
import time

from dbos import DBOS

url, steps = sys.argv[1], int(sys.argv[2])
DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})


@DBOS.step()
def echo(number: int) -> int:
    return number


@DBOS.workflow()
def stepping(count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        echo(number)
    return time.perf_counter() - began


logging.disable(logging.CRITICAL)
DBOS.launch()
stepping(10)  # connects
print(
    json.dumps(
        {
            "jobs": steps,
            "seconds": stepping(steps),
            "version": importlib.metadata.version("dbos"),
            "settings": "@DBOS.step in one @DBOS.workflow, as it comes",
        }
    )
)
DBOS.destroy()
