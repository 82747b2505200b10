#!/usr/bin/env bash
# Runs every chapter and variant under compute-sanitizer (memcheck, racecheck, initcheck) on small problems with odd
# shapes, several at a time. Needs a GPU and the CUDA toolkit's compute-sanitizer.
#
#   tests/sanitize.sh [build folder]      (build/default)
set -euo pipefail
build=${1:-build/default}
command -v compute-sanitizer >/dev/null || { echo "sanitize.sh: compute-sanitizer is not on the PATH" >&2; exit 2; }

# One run: TOOL PROGRAM OPTIONS... Prints nothing but failures and ends with 1 after one.
check() {
  local tool=$1 output
  shift
  output=$(compute-sanitizer --tool "$tool" --error-exitcode 9 "$@" --device gpu --traffic off --ceilings off \
    --repeat 1 2>&1) && return 0
  printf '%s: %s\n' "$tool" "$*"
  grep -E '^=========|check|fault|error' <<<"$output" | head -12
  return 1
}
export -f check

runs=()
for program in "$build"/chapters/*; do
  # The first word of each variant's line in the help, up to the colon. cuBLAS is NVIDIA's to check.
  variants=$("$program" --help | sed -nE '/^ +--variant /,/^ +--(block-q|device) /s/^ +([a-z0-9-]+): .*/\1/p' |
    grep -v '^cublas$')
  for variant in $variants; do
    for tool in memcheck racecheck initcheck; do
      for shape in "--seq 77 --seq-kv 131 --head-dim 64 --causal" "--seq 200 --seq-kv 197 --head-dim 128"; do
        runs+=("$tool $program --variant $variant --batch 1 --heads 2 --kv-heads 1 $shape")
      done
    done
  done
done
failed=0
printf '%s\n' "${runs[@]}" | xargs -P "${JOBS:-4}" -I{} bash -c 'check {}' || failed=1
echo "compute-sanitizer: ${#runs[@]} runs, $([ "$failed" -eq 0 ] && echo all clean || echo failures above)"
exit "$failed"
