"""Runs one entry of one case in this process, and prints its figures. Started by run.py only."""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback

# Peers must not print much.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "torch")


def main() -> None:
    from all_cases import CASES
    from harness import Figures, Others, Size

    key, name, size = sys.argv[1:4]
    case = CASES[key]
    if not case.on_device:  # peers must not look for one
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    result: Figures
    try:
        if name == "--prepare":
            case.prepare(Size(**json.loads(size)))
            result = {}
        else:
            others = Others()
            result = case.entries[name].run(Size(**json.loads(size)))
            result["others"] = others.share()
            for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)):
                cpu, switches = usage.ru_utime + usage.ru_stime, usage.ru_nvcsw + usage.ru_nivcsw
                result["cost_cpu"] = result.get("cost_cpu", 0.0) + cpu
                result["cost_switches"] = result.get("cost_switches", 0) + switches
    except ImportError as error:
        result = {"missing": f"not installed ({error})"}
    except BaseException as error:
        # An entry that fails is a result.
        traceback.print_exc()
        result = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    print("\nRESULT " + json.dumps(result), flush=True)
    # Some peers' threads never end.
    os._exit(0)


if __name__ == "__main__":
    main()
