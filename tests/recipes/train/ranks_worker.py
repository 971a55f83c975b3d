"""One process of several: `torchrun ranks_worker.py JOB...` runs the jobs in order; each is a JSON file.

A job has `out` and the settings of `palaestra.train`, or `out` and `resume`: the changes of `palaestra.resume`. All jobs
share one process group, so a test pays for one start.
"""

import json
import sys
from pathlib import Path

from palaestra import resume, train
from palaestra.rl.distributed.ranks import join_processes

if __name__ == "__main__":
    with join_processes("cpu"):
        for path in sys.argv[1:]:
            job = json.loads(Path(path).read_text())
            if "resume" in job:
                resume(job["out"], progress=False, **job["resume"])
            else:
                train(progress=False, **job)
