#!/usr/bin/env bash
# usage: measures.sh [COMMIT...]: files and lines of each part of the tree, by default at HEAD.
#        measures.sh --purposes [COMMIT]: the lines of each part by what they are for.
#        measures.sh --first [COMMIT]: lines and path of each file without tests that does what the first commit did.
#        measures.sh --first-tests [COMMIT]: the same for the tests of it.
# docs/design/measures.md keeps what both print.
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

# Paths by purpose, the first that matches counts: a name, a tab, and a regular expression of awk.
purposes() {
  cat <<'LIST'
devices	(^|[\/_])device[s_.\/]|_device|resident|fake_cuda
images	\/image\/|(^|[\/_])image[s_]|test_image
clusters	\/ray\/|_ray[_.]|ray_|penstock\/remote\/|workers\/remote_|remote_(workers|servers|worker)|bindings\/remote[._]c|remote_connection|relay|hosted|shard_resolver|snapshot_(folder|saver)|server\/epoch|replica|shard_follower|ranks
live streams, populations, callers that wait	online|mqtt|mosquitto|message_|population|member_rows|batcher|call_queue|tls_client|push_source|[_\/]pool\.py|recurrent
formats	arrow|parquet|hdf5|(^|[\/_])tar[._]|np[yz]|file_rows|row_groups|chunked_array|file_listing|folder_index|image_folder|remote|decoded_cache|sources\/files|file_server|sequence_example
LIST
}

# Lines by purpose at commit $1. $2 is "table": a row for each purpose, a column for each part. Or "first": lines and path of
# each file of what the first commit did, without tests. Or "first-tests": the same of its tests.
by_purpose() {
  git archive "$1" penstock python/bindings python/penstock tests | tar -x -C "$work"
  (cd "$work" && find penstock python tests -type f \( -path 'tests/*' -not -regex '.*\.\(h\|cc\|txt\|cmake\|py\)' -o -print0 \)) |
    (cd "$work" && xargs -0 wc -l) | awk -v list="$(purposes)" -v print_what="$2" '
    BEGIN {
      count = split(list, lines, "\n")
      for (i = 1; i <= count; ++i) { split(lines[i], pair, "\t"); name[i] = pair[1]; pattern[i] = pair[2] }
      name[count + 1] = "what the first commit did"
      name[count + 2] = "all"
    }
    $2 == "total" { next }
    {
      part = $2 ~ /^penstock/ ? 1 : $2 ~ /^python\/bindings/ ? 2 : $2 ~ /^python\/penstock/ ? 3 : $2 ~ /\.py$/ ? 5 : $2 ~ /^tests/ ? 4 : 0
      if (part == 0) next
      for (i = 1; i <= count; ++i) if ($2 ~ pattern[i]) break
      if (i == count + 1 && print_what == (part <= 3 ? "first" : "first-tests")) print $1, $2
      sum[i, part] += $1
      sum[count + 2, part] += $1
    }
    END {
      if (print_what != "table") exit
      print "| lines for | engine | bindings | Python | tests in C++ | tests in Python |"
      print "|---|---|---|---|---|---|"
      for (i = 1; i <= count + 2; ++i) {
        row = "| " name[i] " |"
        for (part = 1; part <= 5; ++part) row = row " " sum[i, part] + 0 " |"
        print row
      }
    }'
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case "${1:-}" in
  --purposes) by_purpose "${2:-HEAD}" table && exit ;;
  --first | --first-tests) by_purpose "${2:-HEAD}" "${1#--}" | LC_ALL=C sort -k 2 && exit ;;
esac
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
