# Sourced by `rust` and `clients/all`, which have several children at once in `running`, by process.

# Waits for one child to end: `ended` is its process, `status` its exit status. `wait -n` does not know a child that a
# signal has already ended.
one_ends() {
  local process
  ended=''
  until [ -n "${ended:-}" ]; do
    for process in "${!running[@]}"; do kill -0 "$process" || ended=$process; done 2>/dev/null
    if [ -n "${ended:-}" ]; then wait "$ended"; else wait -n -p ended "${!running[@]}"; fi
    status=$?
  done
}
