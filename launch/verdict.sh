# shellcheck shell=bash
# Sourced by what starts jobs: the exit code of an acceptance, from the verdict.json that it wrote. The launcher's own code
# says less: mpirun and srun return 1 when they cannot start, and one of several ranks' codes, or a signal's, when ranks end
# differently. Needs python3.

# acceptance_folder COMMAND ARGS...: where `testbed COMMAND ARGS...` writes a verdict; nothing if it writes none.
acceptance_folder() {
  local folder=acceptance
  [ "${1:-}" = accept ] || return 0
  while [ $# -gt 1 ]; do
    shift
    case $1 in
      --output=*) folder=${1#*=} ;;
      --output) folder=${2:-} ;;
      --list | --explain | --explain=* | --help | -h) return 0 ;; # run nothing
    esac
  done
  printf '%s' "$folder"
}

# before_acceptance FOLDER: makes the folder, and prints the mark by which a verdict of this run is known from an older one.
before_acceptance() {
  mkdir -p "$1" && mktemp "$1/.started.XXXXXX" # on the clock of the file system that the verdict will be on
}

# verdict_code FOLDER MARK CODE: what to exit with when the launcher returned CODE; removes the mark, says on standard error
# what is not as it should be.
verdict_code() {
  local folder=$1 mark=$2 code=$3 file=$1/verdict.json verdict finished
  if [ ! "$file" -nt "$mark" ]; then
    rm -f "$mark"
    echo "testbed: no verdict: the launcher returned $code, and $file was not written in this run" >&2
    return 3
  fi
  rm -f "$mark"
  if ! read -r verdict finished < <(python3 -c '
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    acceptance = json.load(file)
print(acceptance["verdict"], str(acceptance["finished"]).lower())' "$file"); then
    echo "testbed: no verdict: $file cannot be read" >&2
    return 3
  fi
  if [ "$finished" != true ]; then
    echo "testbed: the acceptance did not end (the launcher returned $code); $file has what was measured until then" >&2
    return 3
  fi
  case $verdict in
    accept)
      [ "$code" -eq 0 ] && return 0
      echo "testbed: accepted, but the launcher returned $code: the job did not end as it should" >&2
      return 3
      ;;
    reject) return 1 ;;
    incomplete) return 2 ;;
    infrastructure) return 3 ;;
    corruption) return 4 ;;
  esac
  echo "testbed: unknown verdict $verdict in $file" >&2
  return 3
}
