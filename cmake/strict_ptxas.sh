#!/usr/bin/env bash
# Runs a compiler and fails where ptxas says, as mere information, that it gave up what the kernel is written for: wgmma
# that it serialises, a setmaxnreg that it ignores (its notes C7506 to C7520).
#
#   strict_ptxas.sh COMPILER ARGUMENT...
set -uo pipefail
output=$("$@" 2>&1)
code=$?
[[ -n $output ]] && printf '%s\n' "$output" >&2
if [[ $code -eq 0 ]] && grep -qE '\(C75(0[6-9]|1[0-9]|20)\)' <<<"$output"; then
  echo "strict_ptxas.sh: the note above is an error: it costs more than what the chapter shows" >&2
  exit 1
fi
exit "$code"
