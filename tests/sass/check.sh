#!/usr/bin/env bash
# What the compiled kernels of a chapter contain, read from their machine code: every function has each instruction that is
# to be there and none that is not.
#
#   tests/sass/check.sh OBJECT KERNEL +INSTRUCTION... -INSTRUCTION...
#
# OBJECT is compiled for sm_90a; functions whose name contains KERNEL are looked at. Exit codes: 0 as said, 1 not, 77 without
# cuobjdump.
set -euo pipefail
if ! command -v cuobjdump >/dev/null; then
  echo "skipped: cuobjdump, which comes with the CUDA toolkit, is not on the PATH"
  exit 77
fi
object=$1 kernel=$2
shift 2
cuobjdump -sass "$object" | awk -v kernel="$kernel" -v rules="$*" '
  BEGIN { count = split(rules, rule, " ") }
  function judge(   i, name, wanted) {
    if (function_name == "") return
    ++functions
    for (i = 1; i <= count; ++i) {
      wanted = substr(rule[i], 1, 1) == "+"
      name = substr(rule[i], 2)
      if (wanted != (name in seen)) {
        printf "%s: %s %s\n", function_name, wanted ? "lacks" : "has", name
        failed = 1
      }
    }
  }
  /Function :/ {
    judge()
    split("", seen)
    function_name = index($0, kernel) > 0 ? $NF : ""
  }
  match($0, /^[ \t]*\/\*[0-9a-f]+\*\/[ \t]+/) {
    text = substr($0, RLENGTH + 1)
    sub(/^@!?U?P[0-9T]+ /, "", text)
    sub(/[ .;].*/, "", text)
    seen[text] = 1
  }
  END {
    judge()
    if (functions == 0) { print "no function named like " kernel; exit 1 }
    if (!failed) print functions " functions as expected: " rules
    exit failed
  }'
