#!/usr/bin/env bash
# Prints the path of a Python that penstock can be built with: $PYTHON if set, else python3 if it is
# 3.10 or newer, else the newest python3.x on the PATH. Prints nothing where there is none.
set -u
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10 python3.14}; do
  # Run it, do not only look for it: a version manager's shim may be there and refuse.
  found=$("$candidate" -c 'import sys; print(sys.executable if sys.version_info >= (3, 10) else "")' \
    2>/dev/null) || continue
  if [ -n "$found" ]; then
    echo "$found"
    exit 0
  fi
done
