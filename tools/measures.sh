#!/usr/bin/env bash
# usage: measures.sh [COMMIT...]: files and lines of each part of the tree, by default at HEAD.
# docs/design/measures.md keeps what it prints.
set -euo pipefail
cd "$(dirname "$0")/.."

# files and lines below a folder, of the names that end so
count() {
  local commit=$1 folder=$2 names=$3
  git archive "$commit" "$folder" | tar -x -C "$work"
  find "$work/$folder" -type f -regextype posix-extended -regex ".*\.($names)" -print0 >"$work/list"
  printf '%s files, %s lines' "$(tr -cd '\0' <"$work/list" | wc -c)" "$(xargs -0 cat <"$work/list" | wc -l)"
  rm -rf "${work:?}/${folder%%/*}"
}

row() {
  printf '| %s |' "$1"
  for commit in "${commits[@]}"; do printf ' %s |' "$(count "$commit" "$2" "$3")"; done
  printf '\n'
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commits=("${@:-HEAD}")
printf '| part |'
for commit in "${commits[@]}"; do printf ' %s |' "$(git rev-parse --short "$commit")"; done
printf '\n|---|'
printf -- '---|%.0s' "${commits[@]}"
printf '\n'
row 'engine: `penstock`' penstock '[a-z]+'
row 'bindings: `python/bindings`' python/bindings '[a-z]+'
row 'Python: `python/penstock`' python/penstock '[a-z]+'
row 'tests in C++' tests 'h|cc|txt|cmake'
row 'tests in Python' tests 'py'
